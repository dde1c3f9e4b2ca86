// Merge of the partials of split rows, and the fixed-order sum of parameter partials.
//
// Mapping. A block of a few warps owns one split row and a tile of 32 * VECTOR columns; a warp
// takes a contiguous run of the row's slots, a lane VECTOR columns. The warps' results are combined
// in warp order through shared memory. Bytes: each partial is read once. Split rows have few slots
// but for hubs (four warps); parameter partials have a row a block (32 warps).
// Determinism: the order depends on the number of slots alone; no atomics.
#pragma once
#include "common.cuh"

namespace gnnb {

constexpr int MERGE_WARPS = 4;
constexpr int REDUCE_WARPS = 32;

struct MergeArgs {
    const int* heavy_rows;
    const int* heavy_ptr;
    i64 heads, dim;
    const float* partial;             // [slots, H * D]
    const float2* partial_stats;      // [slots, H], softmax only
    void* out;                        // rows in storage type T
    float* lse;                       // [N, H], softmax only
    i64 rows;                         // reduce_rows only: rows of `partial`
};

template <int VECTOR> __device__ __forceinline__ void load_columns(const float* p, float (&x)[VECTOR]) {
    if constexpr (VECTOR == 4) {
        const float4 f = __ldg(reinterpret_cast<const float4*>(p));
        x[0] = f.x; x[1] = f.y; x[2] = f.z; x[3] = f.w;
    } else {
        x[0] = __ldg(p);
    }
}

template <typename T, int VECTOR>
__device__ __forceinline__ void store_columns(void* table, i64 offset, const float (&x)[VECTOR]) {
    T* to = static_cast<T*>(table) + offset;
    #pragma unroll
    for (int i = 0; i < VECTOR; i++) to[i] = Storage<T>::put(x[i]);
}

// Slots [begin, end) that a warp of the block takes.
struct Run { int begin, end; };
template <int WARPS> __device__ __forceinline__ Run warp_run(int first, int last) {
    const int warp = threadIdx.x / WARP, many = last - first;
    return Run{first + (int)((i64)many * warp / WARPS), first + (int)((i64)many * (warp + 1) / WARPS)};
}

template <typename T, int VECTOR> __device__ __forceinline__ void merge_softmax(const MergeArgs& args) {
    __shared__ float shared[MERGE_WARPS][WARP * (VECTOR + 2)];
    const i64 width = args.heads * args.dim;
    const int lane = threadIdx.x & (WARP - 1), warp = threadIdx.x / WARP;
    const int row = args.heavy_rows[blockIdx.x];
    const Run run = warp_run<MERGE_WARPS>(args.heavy_ptr[blockIdx.x], args.heavy_ptr[blockIdx.x + 1]);
    for (i64 tile = blockIdx.y; tile * (WARP * VECTOR) < width; tile += gridDim.y) {
        const i64 column = (tile * WARP + lane) * VECTOR;
        const bool inside = column < width;
        const i64 head = inside ? column / args.dim : 0;
        float top = negative_infinity(), sum = 0.f, acc[VECTOR];
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] = 0.f;
        if (inside) {
            #pragma unroll 4
            for (int s = run.begin; s < run.end; s++) {
                const float2 stat = __ldg(args.partial_stats + (i64)s * args.heads + head);
                float x[VECTOR];
                load_columns<VECTOR>(args.partial + (i64)s * width + column, x);
                const float next = fmaxf(top, stat.x);
                const float shift = next == negative_infinity() ? 0.f : next;
                const float a = exp2_approx(top - shift), b = exp2_approx(stat.x - shift);
                top = next;
                sum = sum * a + stat.y * b;
                #pragma unroll
                for (int i = 0; i < VECTOR; i++) acc[i] = acc[i] * a + x[i] * b;
            }
        }
        float* mine = shared[warp] + lane * (VECTOR + 2);
        mine[0] = top;
        mine[1] = sum;
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) mine[2 + i] = acc[i];
        __syncthreads();
        if (warp == 0 && inside) {
            for (int w = 1; w < MERGE_WARPS; w++) {
                const float* other = shared[w] + lane * (VECTOR + 2);
                const float next = fmaxf(top, other[0]);
                const float shift = next == negative_infinity() ? 0.f : next;
                const float a = exp2_approx(top - shift), b = exp2_approx(other[0] - shift);
                top = next;
                sum = sum * a + other[1] * b;
                #pragma unroll
                for (int i = 0; i < VECTOR; i++) acc[i] = acc[i] * a + other[2 + i] * b;
            }
            const float inverse = 1.f / sum;    // 0 only if every logit is -inf: NaN, as stock
            #pragma unroll
            for (int i = 0; i < VECTOR; i++) acc[i] *= inverse;
            store_columns<T, VECTOR>(args.out, row * width + column, acc);
            if (column == head * args.dim) args.lse[row * args.heads + head] = top + log2_approx(sum);
        }
        __syncthreads();
    }
}

// Sum of `many` rows of partials into row `row` of the output.
template <typename T, int VECTOR, int WARPS>
__device__ __forceinline__ void sum_rows(
    const float* partial, int first, int last, i64 width, void* out, i64 row) {
    __shared__ float shared[WARPS][WARP * VECTOR];
    const int lane = threadIdx.x & (WARP - 1), warp = threadIdx.x / WARP;
    const Run run = warp_run<WARPS>(first, last);
    for (i64 tile = blockIdx.y; tile * (WARP * VECTOR) < width; tile += gridDim.y) {
        const i64 column = (tile * WARP + lane) * VECTOR;
        const bool inside = column < width;
        float acc[VECTOR];
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] = 0.f;
        if (inside) {
            #pragma unroll 4
            for (int s = run.begin; s < run.end; s++) {
                float x[VECTOR];
                load_columns<VECTOR>(partial + (i64)s * width + column, x);
                #pragma unroll
                for (int i = 0; i < VECTOR; i++) acc[i] += x[i];
            }
        }
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) shared[warp][lane * VECTOR + i] = acc[i];
        __syncthreads();
        if (warp == 0 && inside) {
            #pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                for (int w = 1; w < WARPS; w++) acc[i] += shared[w][lane * VECTOR + i];
            }
            store_columns<T, VECTOR>(out, row * width + column, acc);
        }
        __syncthreads();
    }
}

template <typename T, int VECTOR> __device__ __forceinline__ void merge_sum(const MergeArgs& args) {
    sum_rows<T, VECTOR, MERGE_WARPS>(
        args.partial, args.heavy_ptr[blockIdx.x], args.heavy_ptr[blockIdx.x + 1],
        args.heads * args.dim, args.out, args.heavy_rows[blockIdx.x]);
}

// All rows of `partial` into one row: parameter gradients.
template <typename T> __device__ __forceinline__ void reduce_rows(const MergeArgs& args) {
    sum_rows<T, 1, REDUCE_WARPS>(args.partial, 0, (int)args.rows, args.heads * args.dim, args.out, 0);
}

}  // namespace gnnb

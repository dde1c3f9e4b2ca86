// Merge of the partials of split rows, and the fixed-order sum of parameter partials.
//
// Mapping. A block of eight warps owns one split row and a tile of 32 * VECTOR columns; a warp
// takes a contiguous run of the row's slots, a lane VECTOR columns. The warps' results are combined
// in warp order through shared memory. Further blocks of `merge_sum` own eight columns of the
// parameter partials each: a lane takes every 32nd row of one column. Bytes: each partial is read
// once. Determinism: the order depends on the number of slots or rows alone; no atomics.
#pragma once
#include "common.cuh"

namespace gnnb {

constexpr int MERGE_WARPS = 8;
constexpr int REDUCE_COLUMNS = 8;                                     // one 32-byte sector
constexpr int REDUCE_STEP = MERGE_WARPS * WARP / REDUCE_COLUMNS;      // rows side by side

// Split rows of one direction.
struct Side {
    const int* heavy_rows;
    const int* heavy_ptr;
    i64 count;                        // split rows
    const float* partial;             // [slots, H * D]
    void* out;                        // rows in storage type T
};
struct MergeArgs {
    Side side[2];                     // softmax: side[0] only
    i64 heads, dim;
    const float2* partial_stats;      // [slots, H], softmax only
    float* lse;                       // [N, H], softmax only
    const float* param_partials;      // [param_rows, H * D], or null
    i64 param_rows;
    void* param_out;                  // [H * D] in storage type T
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
__device__ __forceinline__ Run warp_run(const Side& side, int which) {
    const int first = side.heavy_ptr[which], many = side.heavy_ptr[which + 1] - first;
    const int warp = threadIdx.x / WARP;
    return Run{first + (int)((i64)many * warp / MERGE_WARPS),
               first + (int)((i64)many * (warp + 1) / MERGE_WARPS)};
}

template <typename T, int VECTOR> __device__ __forceinline__ void merge_softmax(const MergeArgs& args) {
    __shared__ float shared[MERGE_WARPS][WARP * (VECTOR + 2)];
    const i64 width = args.heads * args.dim;
    const int lane = threadIdx.x & (WARP - 1), warp = threadIdx.x / WARP;
    const Side& side = args.side[0];
    const i64 row = side.heavy_rows[blockIdx.x];
    const Run run = warp_run(side, blockIdx.x);
    for (i64 tile = blockIdx.y; tile * (WARP * VECTOR) < width; tile += gridDim.y) {
        const i64 column = (tile * WARP + lane) * VECTOR;
        const bool inside = column < width;
        const i64 head = inside ? column / args.dim : 0;
        float top = LOWEST, sum = 0.f, acc[VECTOR];
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] = 0.f;
        if (inside) {
            #pragma unroll 4
            for (int s = run.begin; s < run.end; s++) {
                const float2 stat = __ldg(args.partial_stats + (i64)s * args.heads + head);
                float x[VECTOR];
                load_columns<VECTOR>(side.partial + (i64)s * width + column, x);
                const float next = fmaxf(top, stat.x);
                const float a = exp2_approx(top - next), b = exp2_approx(stat.x - next);
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
                const float a = exp2_approx(top - next), b = exp2_approx(other[0] - next);
                top = next;
                sum = sum * a + other[1] * b;
                #pragma unroll
                for (int i = 0; i < VECTOR; i++) acc[i] = acc[i] * a + other[2 + i] * b;
            }
            const float inverse = 1.f / sum;    // 0 only if every logit is -inf: NaN, as stock
            #pragma unroll
            for (int i = 0; i < VECTOR; i++) acc[i] *= inverse;
            store_columns<T, VECTOR>(side.out, row * width + column, acc);
            if (column == head * args.dim) args.lse[row * args.heads + head] = top + log2_approx(sum);
        }
        __syncthreads();
    }
}

template <typename T, int VECTOR>
__device__ __forceinline__ void merge_row(const Side& side, int which, i64 width) {
    __shared__ float shared[MERGE_WARPS][WARP * VECTOR];
    const int lane = threadIdx.x & (WARP - 1), warp = threadIdx.x / WARP;
    const i64 row = side.heavy_rows[which];
    const Run run = warp_run(side, which);
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
                load_columns<VECTOR>(side.partial + (i64)s * width + column, x);
                #pragma unroll
                for (int i = 0; i < VECTOR; i++) acc[i] += x[i];
            }
        }
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) shared[warp][lane * VECTOR + i] = acc[i];
        __syncthreads();
        if (warp == 0 && inside) {
            #pragma unroll
            for (int i = 0; i < VECTOR; i++)
                for (int w = 1; w < MERGE_WARPS; w++) acc[i] += shared[w][lane * VECTOR + i];
            store_columns<T, VECTOR>(side.out, row * width + column, acc);
        }
        __syncthreads();
    }
}

// All rows of the parameter partials, columns tile * REDUCE_COLUMNS and on, into one row.
template <typename T> __device__ __forceinline__ void reduce_columns(const MergeArgs& args, i64 tile) {
    __shared__ float shared[MERGE_WARPS][REDUCE_COLUMNS];
    const i64 width = args.heads * args.dim;
    const int place = threadIdx.x % REDUCE_COLUMNS, warp = threadIdx.x / WARP;
    const i64 column = tile * REDUCE_COLUMNS + place;
    float sum = 0.f;
    if (column < width) {
        #pragma unroll 8
        for (i64 row = threadIdx.x / REDUCE_COLUMNS; row < args.param_rows; row += REDUCE_STEP)
            sum += __ldg(args.param_partials + row * width + column);
    }
    #pragma unroll
    for (int o = REDUCE_COLUMNS; o < WARP; o <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
    if ((threadIdx.x & (WARP - 1)) < REDUCE_COLUMNS) shared[warp][place] = sum;
    __syncthreads();
    if (threadIdx.x < REDUCE_COLUMNS && column < width) {
        for (int w = 1; w < MERGE_WARPS; w++) sum += shared[w][place];
        static_cast<T*>(args.param_out)[column] = Storage<T>::put(sum);
    }
}

// Split rows of both directions, and the parameter gradient, in one launch: blockIdx.x counts
// through the three kinds of work.
template <typename T, int VECTOR> __device__ __forceinline__ void merge_sum(const MergeArgs& args) {
    i64 work = blockIdx.x;
    #pragma unroll
    for (int s = 0; s < 2; s++) {
        if (work < args.side[s].count) {
            merge_row<T, VECTOR>(args.side[s], (int)work, args.heads * args.dim);
            return;
        }
        work -= args.side[s].count;
    }
    if (blockIdx.y == 0) reduce_columns<T>(args, work);
}

}  // namespace gnnb

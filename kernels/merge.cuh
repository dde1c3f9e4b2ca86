// Merge of the partials of split rows, and the fixed-order sum of parameter partials.
//
// Mapping: split_rows.cuh, a lane has VECTOR columns of a tile of 32 * VECTOR. Further blocks of
// `merge_sum` own eight columns of the parameter partials each: a lane takes every 32nd row of one
// column. Bytes: each partial is read once. Determinism: the order depends on the number of slots or
// rows alone; no atomics.
#pragma once
#include "split_rows.cuh"
#include "traversal.cuh"

namespace gnnb {

constexpr int REDUCE_COLUMNS = 8;                                     // one 32-byte sector
constexpr int REDUCE_STEP = MERGE_WARPS * WARP / REDUCE_COLUMNS;      // rows side by side

constexpr int MERGE_SIDES = 4;

// Split rows of one table.
struct Side {
    const int* heavy_rows;
    const int* heavy_ptr;
    i64 count;                        // split rows
    const float* partial;             // [slots, H * dim]
    void* out;                        // rows in storage type T
    i64 dim;
    float* lse;                       // [N, H] of softmax, or null; [N, H, 2] if split_lse
};
struct MergeArgs {
    Side side[MERGE_SIDES];           // those after the last have count 0
    i64 heads, dim;                   // dim: of the parameters
    i64 split_lse;                    // LogSum in traversal.cuh
    const float2* partial_stats;      // [slots, H], softmax only
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

// Where a lane works: `row` of the output, `column` of H * D, which is in `head`.
struct Place { i64 row, column, head; };

// Sum of a row's partials in a lane's columns.
template <int VECTOR> struct SumState {
    float acc[VECTOR];

    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] = 0.f;
    }
    __device__ __forceinline__ void add(const MergeArgs& args, const Side& side, int slot, const Place& at) {
        float x[VECTOR];
        load_columns<VECTOR>(side.partial + (i64)slot * (args.heads * side.dim) + at.column, x);
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] += x[i];
    }
    __device__ __forceinline__ void merge(const SumState& other) {
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] += other.acc[i];
    }
    template <typename T>
    __device__ __forceinline__ void store(const MergeArgs& args, const Side& side, const Place& at) {
        store_columns<T, VECTOR>(side.out, at.row * (args.heads * side.dim) + at.column, acc);
    }
};

// Softmax of a row from the maxima, sums and accumulators of its partials.
template <int VECTOR> struct SoftmaxState {
    float top, sum, acc[VECTOR];

    __device__ __forceinline__ void clear() {
        top = LOWEST;
        sum = 0.f;
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] = 0.f;
    }
    __device__ __forceinline__ void merge(const SoftmaxState& other) {
        const float next = fmaxf(top, other.top);
        const float a = exp2_approx(top - next), b = exp2_approx(other.top - next);
        top = next;
        sum = sum * a + other.sum * b;
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] = acc[i] * a + other.acc[i] * b;
    }
    __device__ __forceinline__ void add(const MergeArgs& args, const Side& side, int slot, const Place& at) {
        SoftmaxState one;
        const float2 stat = __ldg(args.partial_stats + (i64)slot * args.heads + at.head);
        one.top = stat.x;
        one.sum = stat.y;
        load_columns<VECTOR>(side.partial + (i64)slot * (args.heads * side.dim) + at.column, one.acc);
        merge(one);
    }
    template <typename T>
    __device__ __forceinline__ void store(const MergeArgs& args, const Side& side, const Place& at) {
        const float inverse = 1.f / sum;        // 0 only if every logit is -inf: NaN, as stock
        #pragma unroll
        for (int i = 0; i < VECTOR; i++) acc[i] *= inverse;
        store_columns<T, VECTOR>(side.out, at.row * (args.heads * side.dim) + at.column, acc);
        if (side.lse == nullptr || at.column != at.head * side.dim) return;
        const i64 place = at.row * args.heads + at.head;
        if (args.split_lse) LogSum<true>::store(side.lse, place, top, log2_approx(sum));
        else LogSum<false>::store(side.lse, place, top, log2_approx(sum));
    }
};

// The split rows of block number `block` of `blocks` of a side.
template <class State, typename T, int VECTOR>
__device__ __forceinline__ void merge_rows(
    const MergeArgs& args, const Side& side, i64 block, i64 blocks) {
    const i64 width = args.heads * side.dim;
    const int lane = threadIdx.x & (WARP - 1);
    for (i64 tile = blockIdx.y; tile * (WARP * VECTOR) < width; tile += gridDim.y) {
        Place at{0, (tile * WARP + lane) * VECTOR, 0};
        const bool inside = at.column < width;
        if (inside) at.head = at.column / side.dim;
        merge_split_rows<State>(
            side.heavy_ptr, side.count, block, blocks, MERGE_ALONE,
            [&](int begin, int end) {
                State state;
                state.clear();
                if (inside) {
                    #pragma unroll 4
                    for (int slot = begin; slot < end; slot++) state.add(args, side, slot, at);
                }
                return state;
            },
            [&](State state, i64 which) {
                at.row = side.heavy_rows[which];
                if (inside) state.template store<T>(args, side, at);
            });
    }
}

__device__ __forceinline__ i64 merge_blocks(const Side& side) {
    return (side.count + MERGE_WARPS - 1) / MERGE_WARPS;
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

// The side that block number `work` is for; `work` becomes the block's number past all sides. A side's
// columns are read VECTOR at a time where its rows allow it.
template <template <int> class State, typename T, int VECTOR>
__device__ __forceinline__ bool merge_sides(const MergeArgs& args, i64& work) {
    #pragma unroll 1
    for (int s = 0; s < MERGE_SIDES; s++) {
        const Side side = args.side[s];
        const i64 blocks = merge_blocks(side);
        if (work < blocks) {
            if (side.dim % VECTOR == 0) merge_rows<State<VECTOR>, T, VECTOR>(args, side, work, blocks);
            else merge_rows<State<1>, T, 1>(args, side, work, blocks);
            return true;
        }
        work -= blocks;
    }
    return false;
}

template <typename T, int VECTOR> __device__ __forceinline__ void merge_softmax(const MergeArgs& args) {
    i64 work = blockIdx.x;
    merge_sides<SoftmaxState, T, VECTOR>(args, work);
}

// Split rows of both directions, and the parameter gradient, in one launch: blockIdx.x counts
// through the kinds of work.
template <typename T, int VECTOR> __device__ __forceinline__ void merge_sum(const MergeArgs& args) {
    i64 work = blockIdx.x;
    if (!merge_sides<SumState, T, VECTOR>(args, work) && blockIdx.y == 0) reduce_columns<T>(args, work);
}

}  // namespace gnnb

// Merge of the partials of split rows, for every reduction of spmm.cuh.
//
// Mapping. A block of eight warps owns one split row and a tile of 32 columns; a warp takes a
// contiguous run of the row's slots, a lane one column. The warps' results are combined in warp order
// through shared memory. Bytes: each partial is read once. Determinism: the order depends on the
// number of slots alone; slots are in edge order, so the first of equal extremes wins.
#pragma once
#include "reductions.cuh"

namespace gnnb {

constexpr int REDUCE_WARPS = 8;

struct ReduceMergeArgs {
    const int* heavy_rows;
    const int* heavy_ptr;
    const double* divisor;           // [heavy rows] edges, for means; else null
    i64 width;
    i64 nothing;                     // the argument where nothing won
    const void* partial;             // [slots, width] of C
    const int* partial_source;
    const void* partial_edge;        // of Id
    void* out;                       // [rows, width] of T
    int* arg_source;
    void* arg_edge;                  // of Id
};

template <typename C> struct MergeSum {
    static __device__ __forceinline__ C start() { return 0; }
    static __device__ __forceinline__ bool take(C& total, C x) {
        total += x;
        return false;
    }
};
template <typename C, bool MAX> struct MergeExtreme {
    static __device__ __forceinline__ C start() { return Order<MAX>::template worst<C>(); }
    static __device__ __forceinline__ bool take(C& total, C x) {
        const bool wins = Order<MAX>::better(x, total);
        total = wins ? x : total;
        return wins;
    }
};

// How: MergeSum or MergeExtreme. A winner is known by its slot, -1 if nothing won.
template <typename T, class How, bool ARGUMENTS, typename Id>
__device__ __forceinline__ void reduce_merge(const ReduceMergeArgs& args) {
    using C = typename Arithmetic<T>::type;
    __shared__ C totals[REDUCE_WARPS][WARP];
    __shared__ int winners[REDUCE_WARPS][WARP];
    const int lane = threadIdx.x & (WARP - 1), warp = threadIdx.x / WARP;
    const i64 row = args.heavy_rows[blockIdx.x];
    const int first = args.heavy_ptr[blockIdx.x], many = args.heavy_ptr[blockIdx.x + 1] - first;
    const int begin = first + (int)((i64)many * warp / REDUCE_WARPS);
    const int end = first + (int)((i64)many * (warp + 1) / REDUCE_WARPS);
    const C* partial = static_cast<const C*>(args.partial);
    for (i64 tile = blockIdx.y; tile * WARP < args.width; tile += gridDim.y) {
        const i64 column = tile * WARP + lane;
        const bool inside = column < args.width;
        C total = How::start();
        int winner = -1;
        if (inside) {
            #pragma unroll 4
            for (int s = begin; s < end; s++)
                if (How::take(total, __ldg(partial + (i64)s * args.width + column))) winner = s;
        }
        totals[warp][lane] = total;
        winners[warp][lane] = winner;
        __syncthreads();
        if (warp == 0 && inside) {
            for (int w = 1; w < REDUCE_WARPS; w++)
                if (How::take(total, totals[w][lane])) winner = winners[w][lane];
            if (args.divisor != nullptr) total /= (C)args.divisor[blockIdx.x];
            const i64 to = row * args.width + column;
            static_cast<T*>(args.out)[to] = Storage<T>::put(total);
            if constexpr (ARGUMENTS) {
                const i64 from = (i64)winner * args.width + column;
                if (args.arg_source != nullptr)
                    args.arg_source[to] = winner < 0 ? (int)args.nothing : args.partial_source[from];
                if (args.arg_edge != nullptr)
                    static_cast<Id*>(args.arg_edge)[to] =
                        winner < 0 ? (Id)args.nothing : static_cast<const Id*>(args.partial_edge)[from];
            }
        }
        __syncthreads();
    }
}

}  // namespace gnnb

// Merge of the partials of split rows, for every reduction of spmm.cuh.
//
// Mapping: split_rows.cuh, a lane has VECTOR columns of a tile of 32 * VECTOR. Bytes: each partial is
// read once. Determinism: the order depends on the number of slots alone; slots are in edge order,
// so the first of equal extremes wins.
#pragma once
#include "reductions.cuh"
#include "split_rows.cuh"

namespace gnnb {

struct ReduceMergeArgs {
    const int* heavy_rows;
    const int* heavy_ptr;
    const double* divisor;           // [heavy rows] edges, for means; else null
    i64 count;                       // split rows
    i64 width;
    i64 nothing;                     // the argument where nothing won
    const void* partial;             // [slots, width] of C
    const int* partial_source;
    const void* partial_edge;        // of Id
    void* out;                       // [rows, width] of T
    int* arg_source;
    void* arg_edge;                  // of Id
};

// How the partials of a row become its total.
template <typename C_> struct MergeSum {
    using C = C_;
    static __device__ __forceinline__ C start() { return 0; }
    static __device__ __forceinline__ bool take(C& total, C x) {
        total += x;
        return false;
    }
};
template <typename C_, bool MAX> struct MergeExtreme {
    using C = C_;
    static __device__ __forceinline__ C start() { return Order<MAX>::template worst<C>(); }
    static __device__ __forceinline__ bool take(C& total, C x) {
        const bool wins = Order<MAX>::better(x, total);
        total = wins ? x : total;
        return wins;
    }
};

// Totals of a lane's columns. A winner is known by its slot, -1 if nothing won.
template <class How, bool ARGUMENTS, int VECTOR> struct Totals {
    using C = typename How::C;
    C total[VECTOR];
    int winner[ARGUMENTS ? VECTOR : 1];
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            total[v] = How::start();
            winner[ARGUMENTS ? v : 0] = -1;
        }
    }
    __device__ __forceinline__ void take(int v, C x, int slot) {
        if (How::take(total[v], x) && ARGUMENTS) winner[ARGUMENTS ? v : 0] = slot;
    }
    __device__ __forceinline__ void merge(const Totals& other) {
        #pragma unroll
        for (int v = 0; v < VECTOR; v++) take(v, other.total[v], other.winner[ARGUMENTS ? v : 0]);
    }
};

template <typename T, class How, bool ARGUMENTS, typename Id, int VECTOR>
__device__ __forceinline__ void reduce_merge(const ReduceMergeArgs& args) {
    using C = typename How::C;
    using State = Totals<How, ARGUMENTS, VECTOR>;
    const int lane = threadIdx.x & (WARP - 1);
    for (i64 tile = blockIdx.y; tile * (WARP * VECTOR) < args.width; tile += gridDim.y) {
        const i64 column = (tile * WARP + lane) * VECTOR;
        const bool inside = column < args.width;
        const C* partial = static_cast<const C*>(args.partial) + column;
        merge_split_rows<State>(
            args.heavy_ptr, args.count, blockIdx.x, gridDim.x, MERGE_ALONE,
            [&](int begin, int end) {
                State state;
                state.clear();
                if (inside) {
                    #pragma unroll 4
                    for (int slot = begin; slot < end; slot++) {
                        const auto x = *reinterpret_cast<const Bundle<C, VECTOR>*>(
                            partial + (i64)slot * args.width);
                        #pragma unroll
                        for (int v = 0; v < VECTOR; v++) state.take(v, x.value[v], slot);
                    }
                }
                return state;
            },
            [&](State state, i64 which) {
                if (!inside) return;
                const i64 to = args.heavy_rows[which] * args.width + column;
                #pragma unroll
                for (int v = 0; v < VECTOR; v++) {
                    C total = state.total[v];
                    if (args.divisor != nullptr) total /= (C)args.divisor[which];
                    static_cast<T*>(args.out)[to + v] = Storage<T>::put(total);
                    if constexpr (ARGUMENTS) {
                        const int slot = state.winner[v];
                        const i64 from = slot * args.width + column + v;
                        if (args.arg_source != nullptr)
                            args.arg_source[to + v] =
                                slot < 0 ? (int)args.nothing : args.partial_source[from];
                        if (args.arg_edge != nullptr)
                            static_cast<Id*>(args.arg_edge)[to + v] = slot < 0
                                ? (Id)args.nothing
                                : static_cast<const Id*>(args.partial_edge)[from];
                    }
                }
            });
    }
}

}  // namespace gnnb

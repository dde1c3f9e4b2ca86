// Softmax of edge values over the edges of each row, column by column, and its backward pass:
//     out_e = exp(x_e - top) / sum                  grad_e = out_e * g_e - out_e * sum(out * g)
//
// Three launches. `edge_softmax_stats`, over tasks (mapping: edges.cuh), finds the statistics of
// every row, or of every task of a split row; `edge_softmax_merge` makes those of split rows
// (split_rows.cuh; lanes side by side take columns and then slots); `edge_softmax_apply` writes
// the result in the caller's edge order, LANES lanes an edge.
//
// Bytes an edge: to the statistics a row of values (backward two) and 4 (edge id) where edges are
// not in CSR order; then the same rows again, 4 (the edge's row), the result, and the statistics of
// its row from the caches. Only the first pass reads rows in another order than they lie in
// memory, and nothing is written so. Determinism: no atomics, fixed orders.
#pragma once
#include "edges.cuh"
#include "exponential.cuh"
#include "split_rows.cuh"

namespace gnnb {

struct EdgeSoftmaxArgs {
    const int4* tasks;
    i64 num_tasks;
    const void* edge_ids;            // of type Id; null: CSR order
    const int* edge_rows;            // [edges], in the caller's order
    i64 num_edges;
    Table value, grad;               // [edges, width]: forward the logits; backward out, grad_out
    i64 width;
    i64 weighted;                    // grad holds out * grad_out
    void* out;                       // [edges, width] of T
    void* row_stats;                 // [rows, width, WORDS] of C
    void* slot_stats;                // [slots, width, WORDS] of C
};

// Largest logit and sum of exponentials; forward.
template <typename C_> struct alignas(2 * sizeof(C_)) SoftmaxStats {
    using C = C_;
    static constexpr bool BACKWARD = false;
    static constexpr int WORDS = 2;
    C top, sum;
    static __device__ __forceinline__ SoftmaxStats of(const C* words) { return {words[0], words[1]}; }
    __device__ __forceinline__ void clear() {
        top = lowest<C>();
        sum = 0;
    }
    __device__ __forceinline__ void merge(const SoftmaxStats& other) {
        const C next = max(top, other.top);
        sum = sum * exponential(top - next) + other.sum * exponential(other.top - next);
        top = next;
    }
    __device__ __forceinline__ SoftmaxStats from_lane(int distance) const {
        return {__shfl_xor_sync(ALL_LANES, top, distance), __shfl_xor_sync(ALL_LANES, sum, distance)};
    }
    template <int N> __device__ __forceinline__ void add(const C (&x)[N], const C (&)[N], int live) {
        C most = top;
        #pragma unroll
        for (int d = 0; d < N; d++) most = live >> d & 1 ? max(most, x[d]) : most;
        sum *= exponential(top - most);
        top = most;
        #pragma unroll
        for (int d = 0; d < N; d++) sum += live >> d & 1 ? exponential(x[d] - top) : (C)0;
    }
    // What `result` multiplies with; a sum of 0 (nothing but -inf) gives NaN, as a division would.
    __device__ __forceinline__ void finish() { sum = (C)1 / sum; }
    __device__ __forceinline__ C result(C x, C) const { return exponential(x - top) * sum; }
};

// Sum of out * grad_out; backward.
template <typename C_> struct ProductStats {
    using C = C_;
    static constexpr bool BACKWARD = true;
    static constexpr int WORDS = 1;
    C sum;
    static __device__ __forceinline__ ProductStats of(const C* words) { return {words[0]}; }
    __device__ __forceinline__ void clear() { sum = 0; }
    __device__ __forceinline__ void merge(const ProductStats& other) { sum += other.sum; }
    __device__ __forceinline__ ProductStats from_lane(int distance) const {
        return {__shfl_xor_sync(ALL_LANES, sum, distance)};
    }
    template <int N>
    __device__ __forceinline__ void add(const C (&)[N], const C (&product)[N], int live) {
        #pragma unroll
        for (int d = 0; d < N; d++) sum += live >> d & 1 ? product[d] : (C)0;
    }
    __device__ __forceinline__ void finish() {}
    __device__ __forceinline__ C result(C out, C product) const { return product - out * sum; }
};

// The statistics of one row or slot; lanes of `at` hold columns.
template <class Stats, class L>
__device__ __forceinline__ void store_stats(
    void* table, const Place<L>& at, i64 row, const Stats (&stats)[L::VALUES]) {
    Stats* to = static_cast<Stats*>(table) + row * at.width;
    #pragma unroll
    for (int i = 0; i < L::VALUES; i++)
        if (at.holds(i)) to[at.column(i)] = stats[i];
}

// Values of several edges in a lane's columns, and products with the gradient (backward).
template <class L, bool BACKWARD, int DEPTH> struct EdgeBatch {
    using C = typename L::C;
    using Values = Operand<L, ROW>;
    using Grads = Operand<L, BACKWARD ? ROW : NONE>;
    typename Values::Loaded v[DEPTH];
    typename Grads::Loaded g[DEPTH];
    __device__ __forceinline__ void load(
        const EdgeSoftmaxArgs& args, const Place<L>& at, int d, i64 edge, bool live) {
        Values(args.value, at, 1).load(v[d], at, edge, live);
        Grads(args.grad, at, 1).load(g[d], at, edge, live);
    }
    __device__ __forceinline__ void unpack(
        const EdgeSoftmaxArgs& args, int d, C (&value)[L::VALUES], C (&product)[L::VALUES]) const {
        C y[L::VALUES];
        v[d].unpack(value);
        g[d].unpack(y);
        #pragma unroll
        for (int i = 0; i < L::VALUES; i++) product[i] = args.weighted ? y[i] : value[i] * y[i];
    }
};

template <class Stats, class L, typename Id, int DEPTH>
__device__ __forceinline__ void edge_softmax_stats(const EdgeSoftmaxArgs& args) {
    using C = typename L::C;
    const i64 warp = this_warp();
    if (warp * L::TASKS >= args.num_tasks) return;
    const Assigned<L> own(args.tasks, args.num_tasks, warp);
    const int tiles = (int)((args.width + L::TILE - 1) / L::TILE);
    #pragma unroll 1
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
        const Place<L> at(args.width, tile);
        Stats stats[L::VALUES];
        #pragma unroll
        for (int i = 0; i < L::VALUES; i++) stats[i].clear();
        for_edges<L, DEPTH, Wants<false, true>>(
            nullptr, static_cast<const Id*>(args.edge_ids), own, at,
            [&](int first, auto&, auto& edges) {
                EdgeBatch<L, Stats::BACKWARD, DEPTH> batch;
                int live = 0;                       // a bit an edge
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    const bool here = first + d * L::EDGES + at.edge < own.task.count;
                    live |= (int)here << d;
                    batch.load(args, at, d, edges[d], here);
                }
                C value[L::VALUES][DEPTH], product[L::VALUES][DEPTH];
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    C x[L::VALUES], y[L::VALUES];
                    batch.unpack(args, d, x, y);
                    #pragma unroll
                    for (int i = 0; i < L::VALUES; i++) {
                        value[i][d] = x[i];
                        product[i][d] = y[i];
                    }
                }
                #pragma unroll
                for (int i = 0; i < L::VALUES; i++) stats[i].add(value[i], product[i], live);
            });
        #pragma unroll
        for (int o = L::LANES; o < L::GROUP; o <<= 1)
            #pragma unroll
            for (int i = 0; i < L::VALUES; i++) stats[i].merge(stats[i].from_lane(o));
        if (!own.exists || at.edge != 0) continue;
        if (own.task.slot >= 0) {
            store_stats<Stats, L>(args.slot_stats, at, own.task.slot, stats);
            continue;
        }
        #pragma unroll
        for (int i = 0; i < L::VALUES; i++) stats[i].finish();
        store_stats<Stats, L>(args.row_stats, at, own.task.row, stats);
    }
}

// The statistics of one row in a lane's columns.
template <class Stats, class L>
__device__ __forceinline__ void load_stats(
    const void* table, const Place<L>& at, i64 row, Stats (&stats)[L::VALUES]) {
    using C = typename L::C;
    const Stats* from = static_cast<const Stats*>(table) + row * at.width;
    if constexpr (L::SHORT || L::VECTOR) {
        constexpr int WORDS = Stats::WORDS * L::VALUES, MOST = 16 / sizeof(C);
        constexpr int EACH = MOST < WORDS ? MOST : WORDS;      // words an access
        C word[WORDS] = {};
        if (at.holds(0)) {
            const auto* all = reinterpret_cast<const Bundle<C, EACH>*>(from + at.first);
            #pragma unroll
            for (int a = 0; a < WORDS / EACH; a++) {
                const Bundle<C, EACH> some = all[a];
                #pragma unroll
                for (int i = 0; i < EACH; i++) word[a * EACH + i] = some.value[i];
            }
        }
        #pragma unroll
        for (int i = 0; i < L::VALUES; i++) stats[i] = Stats::of(word + i * Stats::WORDS);
    } else {
        #pragma unroll
        for (int i = 0; i < L::VALUES; i++) {
            stats[i].clear();
            if (at.holds(i)) stats[i] = from[at.column(i)];
        }
    }
}

// Every edge from its values and the statistics of its row.
template <class Stats, class L, int DEPTH>
__device__ __forceinline__ void edge_softmax_apply(const EdgeSoftmaxArgs& args) {
    using C = typename L::C;
    constexpr int SIDE = WARP / L::LANES;           // edges side by side in a warp
    const int tiles = (int)((args.width + L::TILE - 1) / L::TILE);
    #pragma unroll 1
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
        const Place<L> at(args.width, tile);
        const i64 first = this_warp() * (SIDE * DEPTH) + at.lane / L::LANES;
        EdgeBatch<L, Stats::BACKWARD, DEPTH> batch;
        Stats stats[DEPTH][L::VALUES];
        int row[DEPTH];
        #pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const i64 edge = first + d * SIDE;
            const bool live = edge < args.num_edges;
            row[d] = live ? __ldg(args.edge_rows + edge) : 0;
            batch.load(args, at, d, edge, live);
        }
        #pragma unroll
        for (int d = 0; d < DEPTH; d++) load_stats<Stats, L>(args.row_stats, at, row[d], stats[d]);
        #pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const i64 edge = first + d * SIDE;
            C x[L::VALUES], product[L::VALUES];
            batch.unpack(args, d, x, product);
            #pragma unroll
            for (int i = 0; i < L::VALUES; i++) x[i] = stats[d][i].result(x[i], product[i]);
            if (edge < args.num_edges) store_values<L>(args.out, at, edge, x);
        }
    }
}

struct EdgeSoftmaxMergeArgs {
    const int* heavy_rows;
    const int* heavy_ptr;
    i64 num_heavy;
    i64 width;
    i64 columns;                     // lanes that columns lie over: a power of two, at most WARP
    const void* slot_stats;
    void* row_stats;
};

template <class Stats>
__device__ __forceinline__ void edge_softmax_merge(const EdgeSoftmaxMergeArgs& args) {
    const int lane = threadIdx.x & (WARP - 1);
    const int columns = (int)args.columns, parts = WARP / columns, part = lane / columns;
    const Stats* slots = static_cast<const Stats*>(args.slot_stats);
    Stats* rows = static_cast<Stats*>(args.row_stats);
    #pragma unroll 1
    for (i64 tile = blockIdx.y; tile * columns < args.width; tile += gridDim.y) {
        const i64 column = tile * columns + lane % columns;
        const bool inside = column < args.width;
        merge_split_rows<Stats>(
            args.heavy_ptr, args.num_heavy, blockIdx.x, gridDim.x, MERGE_ALONE / 2 * parts,
            [&](int begin, int end) {
                Stats stats;
                stats.clear();
                #pragma unroll 4
                for (int slot = begin + part; slot < end; slot += parts)
                    if (inside) stats.merge(slots[(i64)slot * args.width + column]);
                for (int o = columns; o < WARP; o <<= 1) stats.merge(stats.from_lane(o));
                return stats;
            },
            [&](Stats stats, i64 which) {
                stats.finish();
                if (inside && part == 0)
                    rows[(i64)args.heavy_rows[which] * args.width + column] = stats;
            });
    }
}

}  // namespace gnnb

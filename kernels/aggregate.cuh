// Several reductions of the neighbours' messages in one pass: any set of sums, means, variances,
// extremes, products and softmax-weighted sums, each neighbour's row read once.
//
// Mapping: edges.cuh. A row of one task is finished and written; rows of several (hubs) leave the
// statistics of each task, which `aggregate_merge` merges in slot order (split_rows.cuh; a lane has
// VECTOR columns of a tile of 32 * VECTOR) and finishes.
//
// Bytes an edge: 4 (source), the source's row, the edge's values if the message has any, and 4 more
// for its id where edges are not in CSR order. Nothing edge-wise is written. Registers: each
// statistic takes a word a column, ties and places of extremes one more.
//
// Determinism: no atomics; tasks and layout fix the order of every sum. The place of an extreme is
// the first in the row, whatever the layout.
#pragma once
#include "aggregate_results.cuh"
#include "functors/message.cuh"
#include "split_rows.cuh"

namespace gnnb {

struct AggregateArgs {
    const int4* tasks;
    i64 num_tasks;
    const int* indices;
    const void* edge_ids;            // of type Id; null: CSR order
    Table x, edge;                   // rows of sources; rows of edges
    i64 width, dim;                  // columns; columns that share a value of HEAD access
    const void* temperature;         // of C: one, or one a column
    i64 temperature_step;            // 0 or 1
    void* partial;                   // [slots, width] of Statistics
    Results out;
};

// The value as it is stored, in the type it is computed in.
template <typename T, typename C> __device__ __forceinline__ C as_stored(C x) {
    return Storage<T>::get(Storage<T>::put(x));
}

// Factors of the logits in a lane's columns.
template <class L>
__device__ __forceinline__ void load_temperature(
    const void* from, i64 step, const Place<L>& at, typename L::C (&t)[L::VALUES]) {
    #pragma unroll
    for (int v = 0; v < L::VALUES; v++)
        t[v] = __ldg(static_cast<const typename L::C*>(from) + (at.holds(v) ? at.column(v) * step : 0));
}

template <class M, int FLAGS, class L, Access EDGE, typename Id, int DEPTH>
__device__ __forceinline__ void aggregate(const AggregateArgs& args) {
    using C = typename L::C;
    using S = Statistics<C, FLAGS, Id>;
    constexpr int K = L::VALUES;
    const i64 warp = this_warp();
    if (warp * L::TASKS >= args.num_tasks) return;
    const Assigned<L> own(args.tasks, args.num_tasks, warp);
    const Task& task = own.task;
    const Id* ids = static_cast<const Id*>(args.edge_ids);
    const int tiles = (int)((args.width + L::TILE - 1) / L::TILE);
    #pragma unroll 1
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
        const Place<L> at(args.width, tile);
        const Operand<L, ROW> rows(args.x, at, args.dim);
        const Operand<L, EDGE, true> values(args.edge, at, args.dim);
        C temperature[K] = {};
        if constexpr (S::has(STAT_SOFTMAX))
            load_temperature<L>(args.temperature, args.temperature_step, at, temperature);
        S state[K];
        #pragma unroll
        for (int v = 0; v < K; v++) state[v].clear();
        for_edges<L, DEPTH, Wants<true, EDGE != NONE>>(
            args.indices, ids, own, at, [&](int first, auto& sources, auto& edges) {
                whole_or_masked<L, DEPTH>(task, first, [&](auto whole) {
                    typename Operand<L, ROW>::Loaded row[DEPTH];
                    typename Operand<L, EDGE, true>::Loaded value[DEPTH];
                    auto live = [&](int d) {
                        return decltype(whole)::value || first + d * L::EDGES + at.edge < task.count;
                    };
                    #pragma unroll
                    for (int d = 0; d < DEPTH; d++) {
                        rows.load(row[d], at, sources[d], live(d));
                        values.load(value[d], at, edges[d], live(d));
                    }
                    #pragma unroll
                    for (int d = 0; d < DEPTH; d++) {
                        if (!live(d)) continue;
                        const Id place = (Id)(task.begin + first + d * L::EDGES + at.edge);
                        C x[K], e[K];
                        row[d].unpack(x);
                        value[d].unpack(e);
                        #pragma unroll
                        for (int v = 0; v < K; v++) {
                            const C m = M::value(x[v], e[v]);
                            const C rounded = M::EXACT ? m : as_stored<typename L::T>(m);
                            state[v].add(m, rounded, place, temperature[v]);
                        }
                    }
                });
            });
        if (at.edge < task.count) {
            #pragma unroll
            for (int v = 0; v < K; v++) state[v].seen((Id)(task.begin + at.edge));
        }
        #pragma unroll
        for (int o = L::LANES; o < L::GROUP; o <<= 1)
            #pragma unroll
            for (int v = 0; v < K; v++) state[v].merge(state[v].from_lane(o));
        if (!own.exists || at.edge != 0) continue;
        if (task.slot >= 0) {
            S* to = static_cast<S*>(args.partial) + (i64)task.slot * args.width;
            #pragma unroll
            for (int v = 0; v < K; v++)
                if (at.holds(v)) to[at.column(v)] = state[v];
            continue;
        }
        finish(args.out, ids, state, (C)task.count, [&](void* table, const auto& x, auto typed) {
            if constexpr (decltype(typed)::value) store_values<L>(table, at, task.row, x);
            else store_plain<L>(table, at, task.row, x);
        });
    }
}

struct AggregateMergeArgs {
    const int* heavy_rows;
    const int* heavy_ptr;
    const double* degrees;           // [heavy rows]
    i64 count;                       // split rows
    i64 width;
    const void* edge_ids;            // of Id
    const void* partial;             // [slots, width] of Statistics
    Results out;
};

// A lane's columns of a split row.
template <class S, int VECTOR> struct Merged {
    S column[VECTOR];
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int v = 0; v < VECTOR; v++) column[v].clear();
    }
    __device__ __forceinline__ void merge(const Merged& other) {
        #pragma unroll
        for (int v = 0; v < VECTOR; v++) column[v].merge(other.column[v]);
    }
};

// Neighbouring values from place `to` of a table on, as T or as they are.
template <typename T, bool TYPED, typename P, int N>
__device__ __forceinline__ void store_columns(void* table, i64 to, const P (&x)[N]) {
    #pragma unroll
    for (int v = 0; v < N; v++) {
        if constexpr (TYPED) static_cast<T*>(table)[to + v] = Storage<T>::put(x[v]);
        else static_cast<P*>(table)[to + v] = x[v];
    }
}

template <typename T, int FLAGS, typename Id, int VECTOR>
__device__ __forceinline__ void aggregate_merge(const AggregateMergeArgs& args) {
    using C = typename Arithmetic<T>::type;
    using S = Statistics<C, FLAGS, Id>;
    using State = Merged<S, VECTOR>;
    const int lane = threadIdx.x & (WARP - 1);
    for (i64 tile = blockIdx.y; tile * (WARP * VECTOR) < args.width; tile += gridDim.y) {
        const i64 column = (tile * WARP + lane) * VECTOR;
        const bool inside = column < args.width;
        const S* partial = static_cast<const S*>(args.partial) + column;
        merge_split_rows<State>(
            args.heavy_ptr, args.count, blockIdx.x, gridDim.x, MERGE_ALONE,
            [&](int begin, int end) {
                State state;
                state.clear();
                for (int slot = begin; inside && slot < end; slot++) {
                    #pragma unroll
                    for (int v = 0; v < VECTOR; v++)
                        state.column[v].merge(partial[(i64)slot * args.width + v]);
                }
                return state;
            },
            [&](const State& state, i64 which) {
                if (!inside) return;
                const i64 to = args.heavy_rows[which] * args.width + column;
                finish(args.out, static_cast<const Id*>(args.edge_ids), state.column,
                       (C)args.degrees[which], [&](void* table, const auto& x, auto typed) {
                           store_columns<T, decltype(typed)::value>(table, to, x);
                       });
            });
    }
}

}  // namespace gnnb

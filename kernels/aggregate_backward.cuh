// Backward of an aggregation: gradients of the sources' rows and of the edges' values.
//
// `aggregate_backward` goes over the tasks by source: a source's row stays in registers, and each
// out-edge gathers what its destination has (aggregate_terms.cuh); hubs leave a partial a task,
// which reduce_merge.cuh sums. `aggregate_backward_edge` goes over the tasks by destination, whose
// tables come from the caches, and gathers the sources' rows; a value that a head's columns share
// gets their sum, LANES lanes a head, blockIdx.y over heads.
//
// Bytes an edge, by source: 4 (destination), a row of each table that the terms name, 4 more for the
// edge's id and its values where there are any. By destination: 4, 4, a source's row, the edge's
// values, and the gradient. Determinism: no atomics; tasks and layout fix the order of every sum.
#pragma once
#include "aggregate_terms.cuh"

namespace gnnb {

struct AggregateBackwardArgs {
    const int4* tasks;
    i64 num_tasks;
    const int* indices;              // the other ends
    const void* edge_ids;            // of type Id; null: CSR order
    Table x, edge;
    i64 width, dim;
    GradientTables tables;
    void* out;                       // [sources, width] or [edges, ...] of T
    void* partial;                   // [slots, width] of C
};

template <class M, int FLAGS, class L, Access EDGE, typename Id, int DEPTH>
__device__ __forceinline__ void aggregate_backward(const AggregateBackwardArgs& args) {
    using C = typename L::C;
    using Terms = GradientTerms<M, FLAGS, L, Id, DEPTH>;
    constexpr int K = L::VALUES;
    constexpr bool NUMBERED = EDGE != NONE || (Terms::has(FIRST) && Terms::has(STAT_MAX | STAT_MIN));
    const i64 warp = this_warp();
    if (warp * L::TASKS >= args.num_tasks) return;
    const Assigned<L> own(args.tasks, args.num_tasks, warp);
    const Task& task = own.task;
    const int tiles = (int)((args.width + L::TILE - 1) / L::TILE);
    #pragma unroll 1
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
        const Place<L> at(args.width, tile);
        const Operand<L, EDGE, true> values(args.edge, at, args.dim);
        C temperature[K] = {}, x[K], sum[K];
        if constexpr (Terms::has(STAT_SOFTMAX))
            load_temperature<L>(args.tables.temperature, args.tables.temperature_step, at, temperature);
        typename Operand<L, ROW>::Loaded row;
        Operand<L, ROW>(args.x, at, 1).load(row, at, task.row, own.exists);
        row.unpack(x);
        #pragma unroll
        for (int v = 0; v < K; v++) sum[v] = 0;
        for_edges<L, DEPTH, Wants<true, NUMBERED>>(
            args.indices, static_cast<const Id*>(args.edge_ids), own, at,
            [&](int first, auto& ends, auto& edges) {
                Terms terms;
                typename Operand<L, EDGE, true>::Loaded value[DEPTH];
                auto live = [&](int d) { return first + d * L::EDGES + at.edge < task.count; };
                auto message = [&](int d, C (&e)[K], C (&m)[K]) {
                    value[d].unpack(e);
                    #pragma unroll
                    for (int v = 0; v < K; v++) m[v] = M::value(x[v], e[v]);
                };
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    values.load(value[d], at, edges[d], live(d));
                    terms.load(args.tables, at, d, ends[d], live(d));
                }
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    C e[K], m[K];
                    message(d, e, m);
                    terms.select(args.tables, at, d, ends[d], edges[d], live(d), m);
                }
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    if (!live(d)) continue;
                    C e[K], m[K], dm[K];
                    message(d, e, m);
                    terms.gradient(d, m, temperature, dm);
                    #pragma unroll
                    for (int v = 0; v < K; v++) sum[v] += M::by_x(x[v], e[v], dm[v]);
                }
            });
        #pragma unroll
        for (int o = L::LANES; o < L::GROUP; o <<= 1)
            #pragma unroll
            for (int v = 0; v < K; v++) sum[v] += shuffled(sum[v], o);
        if (!own.exists || at.edge != 0) continue;
        if (task.slot >= 0) store_plain<L>(args.partial, at, task.slot, sum);
        else store_values<L>(args.out, at, task.row, sum);
    }
}

// Tables from a column on, as each head has them.
template <class L>
__device__ __forceinline__ GradientTables from_column(GradientTables t, i64 column, i64 id_bytes) {
    using T = typename L::T;
    using C = typename L::C;
    auto moved = [&](const void* table, i64 bytes) {
        return static_cast<const char*>(table) + column * bytes;
    };
    t.linear = moved(t.linear, sizeof(C));
    t.quadratic = moved(t.quadratic, sizeof(C));
    t.whole = moved(t.whole, sizeof(C));
    t.lone = moved(t.lone, sizeof(C));
    t.lse = moved(t.lse, sizeof(C));
    t.softmax = moved(t.softmax, sizeof(T));
    t.softmax_grad = moved(t.softmax_grad, sizeof(T));
    t.most = moved(t.most, id_bytes);
    t.least = moved(t.least, id_bytes);
    t.most_grad = moved(t.most_grad, sizeof(T));
    t.least_grad = moved(t.least_grad, sizeof(T));
    t.temperature = moved(t.temperature, t.temperature_step * sizeof(C));
    return t;
}

// EDGE ROW: the gradient of every column's value; HEAD: of the value that `dim` columns share.
template <class M, int FLAGS, class L, Access EDGE, typename Id, int DEPTH>
__device__ __forceinline__ void aggregate_backward_edge(const AggregateBackwardArgs& args) {
    using T = typename L::T;
    using C = typename L::C;
    using Terms = GradientTerms<M, FLAGS, L, Id, DEPTH>;
    constexpr int K = L::VALUES;
    constexpr bool SHARED = EDGE == HEAD;
    const i64 warp = this_warp();
    if (warp * L::TASKS >= args.num_tasks) return;
    const Assigned<L> own(args.tasks, args.num_tasks, warp);
    const Task& task = own.task;
    const int columns = (int)(SHARED ? args.dim : args.width);       // that are worked on in a row
    const int heads = (int)(args.width / columns), tiles = (columns + L::TILE - 1) / L::TILE;
    #pragma unroll 1
    for (int part = blockIdx.y; part < (SHARED ? heads : tiles); part += gridDim.y) {
        const i64 begin = SHARED ? (i64)part * columns : 0;
        const GradientTables tables = from_column<L>(
            args.tables, begin, Terms::has(FIRST) ? sizeof(Id) : sizeof(T));
        const Table rows{static_cast<const T*>(args.x.data) + begin, nullptr, args.x.stride};
        const T* edge_values = static_cast<const T*>(args.edge.data);
        for_edges<L, DEPTH, Wants<true, true>>(
            args.indices, static_cast<const Id*>(args.edge_ids), own, Place<L>(columns, 0),
            [&](int first, auto& sources, auto& edges) {
                auto live = [&](int d, const Place<L>& at) {
                    return first + d * L::EDGES + at.edge < task.count;
                };
                C shared[DEPTH] = {};
                #pragma unroll 1
                for (int tile = SHARED ? 0 : part; tile < (SHARED ? tiles : part + 1); tile++) {
                    const Place<L> at(columns, tile);
                    C temperature[K] = {};
                    if constexpr (Terms::has(STAT_SOFTMAX))
                        load_temperature<L>(tables.temperature, tables.temperature_step, at, temperature);
                    Terms terms;
                    C x[DEPTH][K], e[DEPTH][K];
                    #pragma unroll
                    for (int d = 0; d < DEPTH; d++) {
                        typename Operand<L, ROW>::Loaded row, value;
                        Operand<L, ROW>(rows, at, 1).load(row, at, sources[d], live(d, at));
                        row.unpack(x[d]);
                        if constexpr (SHARED) {
                            const C one = live(d, at)
                                ? Storage<T>::get(at_row(edge_values, edges[d], args.edge.stride)[part])
                                : (C)0;
                            #pragma unroll
                            for (int v = 0; v < K; v++) e[d][v] = one;
                        } else {
                            Operand<L, ROW>(args.edge, at, 1).load(value, at, edges[d], live(d, at));
                            value.unpack(e[d]);
                        }
                        terms.load(tables, at, d, task.row, live(d, at));
                    }
                    #pragma unroll
                    for (int d = 0; d < DEPTH; d++) {
                        if (!live(d, at)) continue;
                        C m[K], dm[K];
                        #pragma unroll
                        for (int v = 0; v < K; v++) m[v] = M::value(x[d][v], e[d][v]);
                        terms.select(tables, at, d, task.row, edges[d], true, m);
                        terms.gradient(d, m, temperature, dm);
                        #pragma unroll
                        for (int v = 0; v < K; v++) {
                            dm[v] = M::by_edge(x[d][v], e[d][v], dm[v]);
                            if (SHARED && at.holds(v)) shared[d] += dm[v];
                        }
                        if constexpr (!SHARED) store_values<L>(args.out, at, edges[d], dm);
                    }
                }
                if constexpr (SHARED) {
                    const Place<L> at(columns, 0);
                    #pragma unroll
                    for (int d = 0; d < DEPTH; d++) {
                        #pragma unroll
                        for (int o = L::LANES / 2; o; o >>= 1) shared[d] += shuffled(shared[d], o);
                        if (live(d, at) && at.within == 0)
                            static_cast<T*>(args.out)[(i64)edges[d] * heads + part] =
                                Storage<T>::put(shared[d]);
                    }
                }
            });
    }
}

}  // namespace gnnb

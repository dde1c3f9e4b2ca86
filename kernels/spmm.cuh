// Generalised SpMM: out_i = reduce_{e = (j -> i)} op(lhs_j, rhs_e), columns broadcast.
//
// Mapping: edges.cuh. A row of one task is written; rows of several (hubs) leave a partial a task,
// which reduce_merge.cuh merges in slot order.
//
// Bytes an edge: 4 (source) + the rows or values of the operands; 4 more for an edge's id where an
// edge operand is not in CSR order. Nothing edge-wise is written. The argument of an extreme is
// tracked as a position in the task, in a register, and looked up once a column at the end.
//
// Determinism: no atomics; tasks and layout fix the order of every sum. The argument is the first
// edge of the row among equals, whatever the layout.
#pragma once
#include "reductions.cuh"
#include "functors/binary.cuh"

namespace gnnb {

struct SpmmArgs {
    const int4* tasks;
    i64 num_tasks;
    const int* indices;
    const void* edge_ids;            // of type Id; null: CSR order
    Table lhs, rhs;                  // rows of sources; rows of edges
    i64 width, dim;                  // columns of the result; columns a value of HEAD access
    i64 mean;                        // divide sums by the number of edges
    i64 nothing;                     // the argument where nothing won
    void* out;                       // [rows, width] of T
    int* arg_source;                 // [rows, width], or null
    void* arg_edge;                  // [rows, width] of Id, or null
    void* partial;                   // [slots, width] of C
    int* partial_source;
    void* partial_edge;
};

// What won each column: source and edge.
template <class L, typename Id, class R>
__device__ __forceinline__ void store_arguments(
    const SpmmArgs& args, const Place<L>& at, const Task& task, const R& state) {
    const bool whole = task.slot < 0;
    const i64 row = whole ? task.row : task.slot;
    int* sources = whole ? args.arg_source : args.partial_source;
    void* edges = whole ? args.arg_edge : args.partial_edge;
    if (sources != nullptr) {
        int source[L::VALUES];
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++)
            source[v] = state.where[v] == NOWHERE ? (int)args.nothing
                : __ldg(args.indices + task.begin + state.where[v]);
        store_plain<L, int>(sources, at, row, source);
    }
    if (edges != nullptr) {
        const Id* ids = static_cast<const Id*>(args.edge_ids);
        Id edge[L::VALUES];
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++) {
            const i64 position = task.begin + state.where[v];
            edge[v] = state.where[v] == NOWHERE ? (Id)args.nothing
                : ids == nullptr ? (Id)position : __ldg(ids + position);
        }
        store_plain<L, Id>(edges, at, row, edge);
    }
}

template <class Op, class R, class L, Access LEFT, Access RIGHT, typename Id, int DEPTH>
__device__ __forceinline__ void spmm(const SpmmArgs& args) {
    using C = typename L::C;
    const i64 warp = this_warp();
    if (warp * L::TASKS >= args.num_tasks) return;
    const Assigned<L> own(args.tasks, args.num_tasks, warp);
    const Task& task = own.task;
    const int tiles = (int)((args.width + L::TILE - 1) / L::TILE);
    #pragma unroll 1
    for (int tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
        const Place<L> at(args.width, tile);
        const Operand<L, LEFT> lhs(args.lhs, at, args.dim);
        const Operand<L, RIGHT, true> rhs(args.rhs, at, args.dim);
        R state;
        state.clear();
        for_edges<L, DEPTH, Wants<LEFT != NONE, RIGHT != NONE>>(
            args.indices, static_cast<const Id*>(args.edge_ids), own, at,
            [&](int first, auto& sources, auto& edges) {
                typename Operand<L, LEFT>::Loaded left[DEPTH];
                typename Operand<L, RIGHT, true>::Loaded right[DEPTH];
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    const bool live = first + d * L::EDGES + at.edge < task.count;
                    lhs.load(left[d], at, sources[d], live);
                    rhs.load(right[d], at, edges[d], live);
                }
                #pragma unroll
                for (int d = 0; d < DEPTH; d++) {
                    C a[L::VALUES], b[L::VALUES];
                    left[d].unpack(a);
                    right[d].unpack(b);
                    #pragma unroll
                    for (int v = 0; v < L::VALUES; v++) a[v] = Op::apply(a[v], b[v]);
                    const int position = first + d * L::EDGES + at.edge;
                    state.add(a, position, position < task.count);
                }
            });
        state.combine();
        if (!own.exists || at.edge != 0) continue;
        if constexpr (R::ARGUMENTS) store_arguments<L, Id>(args, at, task, state);
        if (task.slot >= 0) {
            store_plain<L, C>(args.partial, at, task.slot, state.total);
            continue;
        }
        if (args.mean && task.count > 0) {
            #pragma unroll
            for (int v = 0; v < L::VALUES; v++) state.total[v] /= (C)task.count;
        }
        store_values<L>(args.out, at, task.row, state.total);
    }
}

}  // namespace gnnb

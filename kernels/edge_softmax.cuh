// Softmax of edge values over the edges of each row, column by column, and its backward pass:
//     out_e = exp(x_e - top) / sum                  grad_e = out_e * g_e - out_e * sum(out * g)
//
// Mapping: edges.cuh. A task whose row is whole finds the row's statistics and writes its edges,
// which it reads again from the caches. Rows of several tasks leave statistics a task, which
// `edge_softmax_merge` makes those of the row, and `edge_softmax_finish` writes their edges.
//
// Bytes an edge: 4 (edge id) + two rows forward, three backward, as often as the caches do not hold
// a task's rows; split rows read theirs twice from memory. Determinism: no atomics, fixed orders.
#pragma once
#include "edges.cuh"

namespace gnnb {

constexpr int SOFTMAX_MERGE_WARPS = 8;

struct EdgeSoftmaxArgs {
    const int4* tasks;               // all tasks; to finish: those of split rows
    i64 num_tasks;
    const void* edge_ids;            // of type Id; null: CSR order
    Table value, grad;               // [edges, width]: forward the logits; backward out, grad_out
    i64 width;
    i64 weighted;                    // grad holds out * grad_out
    void* out;                       // [edges, width] of T
    void* stats;                     // [slots, 2, width] of C
};

__device__ __forceinline__ float exponential(float x) { return exp2_approx(x * LOG2E); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// Finite, so that what is -inf below it gives 0.
template <typename C> __device__ __forceinline__ C lowest() {
    return sizeof(C) == 8 ? (C)-1.7e308 : (C)LOWEST;
}

// Largest logit and sum of exponentials; forward.
template <typename C> struct SoftmaxStats {
    static constexpr bool BACKWARD = false;
    C top, sum;
    __device__ __forceinline__ void clear() {
        top = lowest<C>();
        sum = 0;
    }
    __device__ __forceinline__ void merge(C other_top, C other_sum) {
        const C next = max(top, other_top);
        sum = sum * exponential(top - next) + other_sum * exponential(other_top - next);
        top = next;
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
template <typename C> struct ProductStats {
    static constexpr bool BACKWARD = true;
    C top, sum;
    __device__ __forceinline__ void clear() { top = sum = 0; }
    __device__ __forceinline__ void merge(C, C other_sum) { sum += other_sum; }
    template <int N>
    __device__ __forceinline__ void add(const C (&)[N], const C (&product)[N], int live) {
        #pragma unroll
        for (int d = 0; d < N; d++) sum += live >> d & 1 ? product[d] : (C)0;
    }
    __device__ __forceinline__ void finish() {}
    __device__ __forceinline__ C result(C out, C product) const { return product - out * sum; }
};

// Values of a batch of edges in a lane's columns, and products with the gradient (backward).
template <class L, bool BACKWARD, typename Id, int DEPTH> struct EdgeBatch {
    using C = typename L::C;
    C value[L::VALUES][DEPTH], product[L::VALUES][DEPTH];
    int live;                                   // a bit an edge
    __device__ __forceinline__ void load(
        const EdgeSoftmaxArgs& args, const Place<L>& at, const Id (&edges)[DEPTH], int first,
        int count) {
        const Operand<L, ROW> values(args.value, at, 1);
        const Operand<L, BACKWARD ? ROW : NONE> grads(args.grad, at, 1);
        typename Operand<L, ROW>::Loaded v[DEPTH];
        typename Operand<L, BACKWARD ? ROW : NONE>::Loaded g[DEPTH];
        live = 0;
        #pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const bool here = first + d * L::EDGES + at.edge < count;
            live |= (int)here << d;
            values.load(v[d], at, edges[d], here);
            grads.load(g[d], at, edges[d], here);
        }
        #pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            C x[L::VALUES], y[L::VALUES];
            v[d].unpack(x);
            g[d].unpack(y);
            #pragma unroll
            for (int i = 0; i < L::VALUES; i++) {
                value[i][d] = x[i];
                product[i][d] = args.weighted ? y[i] : x[i] * y[i];
            }
        }
    }
};

template <class Stats, class L, typename Id, int DEPTH>
__device__ __forceinline__ void write_edges(
    const EdgeSoftmaxArgs& args, const Assigned<L>& own, const Place<L>& at,
    Stats (&stats)[L::VALUES]) {
    using C = typename L::C;
    #pragma unroll
    for (int i = 0; i < L::VALUES; i++) stats[i].finish();
    for_edges<L, DEPTH, Wants<false, true>>(
        nullptr, static_cast<const Id*>(args.edge_ids), own, at,
        [&](int first, auto&, auto& edges) {
            EdgeBatch<L, Stats::BACKWARD, Id, DEPTH> batch;
            batch.load(args, at, edges, first, own.task.count);
            #pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                C x[L::VALUES];
                #pragma unroll
                for (int i = 0; i < L::VALUES; i++)
                    x[i] = stats[i].result(batch.value[i][d], batch.product[i][d]);
                if (batch.live >> d & 1) store_values<L>(args.out, at, edges[d], x);
            }
        });
}

template <class Stats, class L, typename Id, int DEPTH>
__device__ __forceinline__ void edge_softmax(const EdgeSoftmaxArgs& args) {
    using C = typename L::C;
    const i64 warp = this_warp();
    if (warp * L::TASKS >= args.num_tasks) return;
    const Assigned<L> own(args.tasks, args.num_tasks, warp);
    const bool split = own.task.slot >= 0;
    const Assigned<L> whole = own.only(!split);
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
                EdgeBatch<L, Stats::BACKWARD, Id, DEPTH> batch;
                batch.load(args, at, edges, first, own.task.count);
                #pragma unroll
                for (int i = 0; i < L::VALUES; i++)
                    stats[i].add(batch.value[i], batch.product[i], batch.live);
            });
        #pragma unroll
        for (int o = L::LANES; o < L::GROUP; o <<= 1)
            #pragma unroll
            for (int i = 0; i < L::VALUES; i++) {
                const C top = __shfl_xor_sync(ALL_LANES, stats[i].top, o);
                const C sum = __shfl_xor_sync(ALL_LANES, stats[i].sum, o);
                stats[i].merge(top, sum);
            }
        if (split && at.edge == 0) {
            C top[L::VALUES], sum[L::VALUES];
            #pragma unroll
            for (int i = 0; i < L::VALUES; i++) {
                top[i] = stats[i].top;
                sum[i] = stats[i].sum;
            }
            store_plain<L, C>(args.stats, at, 2 * (i64)own.task.slot, top);
            store_plain<L, C>(args.stats, at, 2 * (i64)own.task.slot + 1, sum);
        }
        write_edges<Stats, L, Id, DEPTH>(args, whole, at, stats);
    }
}

// The edges of split rows, whose statistics stand in every slot of the row.
template <class Stats, class L, typename Id, int DEPTH>
__device__ __forceinline__ void edge_softmax_finish(const EdgeSoftmaxArgs& args) {
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
        for (int i = 0; i < L::VALUES; i++) {
            stats[i].clear();
            if (!own.exists || !at.holds(i)) continue;
            const C* from = static_cast<const C*>(args.stats)
                + 2 * (i64)own.task.slot * args.width + at.column(i);
            stats[i].top = from[0];
            stats[i].sum = from[args.width];
        }
        write_edges<Stats, L, Id, DEPTH>(args, own, at, stats);
    }
}

struct EdgeSoftmaxMergeArgs {
    const int* heavy_ptr;
    i64 width;
    void* stats;                     // [slots, 2, width] of C
};

// A block of eight warps makes one split row's statistics of its slots', in slot order, and puts
// them into all of them.
template <class Stats, typename C>
__device__ __forceinline__ void edge_softmax_merge(const EdgeSoftmaxMergeArgs& args) {
    __shared__ C tops[SOFTMAX_MERGE_WARPS][WARP];
    __shared__ C sums[SOFTMAX_MERGE_WARPS][WARP];
    const int lane = threadIdx.x & (WARP - 1), warp = threadIdx.x / WARP;
    const int first = args.heavy_ptr[blockIdx.x], many = args.heavy_ptr[blockIdx.x + 1] - first;
    const int begin = first + (int)((i64)many * warp / SOFTMAX_MERGE_WARPS);
    const int end = first + (int)((i64)many * (warp + 1) / SOFTMAX_MERGE_WARPS);
    for (i64 tile = blockIdx.y; tile * WARP < args.width; tile += gridDim.y) {
        const i64 column = tile * WARP + lane;
        const bool inside = column < args.width;
        C* base = static_cast<C*>(args.stats) + column;
        Stats stats;
        stats.clear();
        if (inside) {
            #pragma unroll 4
            for (int s = begin; s < end; s++) {
                const C* from = base + 2 * (i64)s * args.width;
                stats.merge(from[0], from[args.width]);
            }
        }
        tops[warp][lane] = stats.top;
        sums[warp][lane] = stats.sum;
        __syncthreads();
        if (warp == 0) {
            for (int w = 1; w < SOFTMAX_MERGE_WARPS; w++) stats.merge(tops[w][lane], sums[w][lane]);
            tops[0][lane] = stats.top;
            sums[0][lane] = stats.sum;
        }
        __syncthreads();
        if (inside) {
            for (int s = begin; s < end; s++) {
                C* to = base + 2 * (i64)s * args.width;
                to[0] = tops[0][lane];
                to[args.width] = sums[0][lane];
            }
        }
        __syncthreads();
    }
}

}  // namespace gnnb

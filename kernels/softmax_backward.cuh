// Backward passes of the softmax-weighted sum. Two of them, so that nothing is added atomically:
// by destination for the gradients of destination rows and parameters, by source for those of
// source rows. Scores are computed again; the saved log-sum-exp and <grad_out, out> of a row are
// all that the softmax's derivative needs. Mapping, bytes and determinism: traversal.cuh.
#pragma once
#include "dots.cuh"
#include "features.cuh"
#include "traversal.cuh"

namespace gnnb {

// A row's number for a head, or its partial; x is the same in all lanes of the head.
template <class S>
__device__ __forceinline__ void store_scalar(
    void* table, float* partial, const TraversalArgs& args, const Lane<S>& at, const Task& task, float x) {
    using T = typename S::T;
    if (table == nullptr || at.within != 0) return;
    if (task.slot < 0) static_cast<T*>(table)[(i64)task.row * args.heads + at.head] = Storage<T>::put(x);
    else partial[(i64)task.slot * args.heads + at.head] = x;
}

// Gradients of a row without edges, which has one task. BY_DST: of a destination.
template <bool BY_DST, class F, class S, int UNROLL>
__device__ __forceinline__ void write_zeros(
    const TraversalArgs& args, const Lane<S>& at, const FeatureLanes<typename F::Options>& lanes,
    const Owned<S, UNROLL, typename F::Options>& own) {
    using O = typename F::Options;
    if (!own.exists) return;
    float zeros[S::VALUES];
    #pragma unroll
    for (int i = 0; i < S::VALUES; i++) zeros[i] = 0.f;
    constexpr bool SCALAR = BY_DST && F::SCALARS && !F::DOTS;  // the row's gradient is a number for each head
    if (!SCALAR && args.grad != nullptr) store_row<S>(args.grad, at, own.task.row, zeros);
    if constexpr (F::SECOND)
        if (!BY_DST && args.second_grad != nullptr) store_row<S>(args.second_grad, at, own.task.row, zeros);
    if constexpr (F::SCALARS) store_scalar(SCALAR ? args.grad : args.second_grad, nullptr, args, at, own.task, 0.f);
    if constexpr (BY_DST && O::EdgeFeatures::ANY) {
        FeatureGrad<O, S> none;
        none.clear();
        none.store(args, lanes, own.task);
    }
}

// A block's sum of parameter gradients, into row blockIdx.x of the partials.
template <class S>
__device__ __forceinline__ void store_param_grad(
    float* partials, const Lane<S>& at, const float (&grad)[S::VALUES]) {
    constexpr int K = S::VALUES, WARPS = BLOCK / WARP;
    __shared__ float shared[WARPS][S::GROUP * K];
    const int warp = threadIdx.x / WARP, place = at.lane % S::GROUP;
    #pragma unroll
    for (int i = 0; i < K; i++) {
        const float g = group_sum<S>(grad[i]);
        if (at.group == 0) shared[warp][place * K + i] = g;
    }
    __syncthreads();
    if (threadIdx.x < S::GROUP) {
        float total[K];
        #pragma unroll
        for (int i = 0; i < K; i++) {
            total[i] = 0.f;
            for (int w = 0; w < WARPS; w++) total[i] += shared[w][place * K + i];
        }
        store_partial<S>(partials, at, (int)blockIdx.x, total);
    }
    __syncthreads();
}

// What edges get by destination, from the lanes that hold their logits: the gradient of the logit's term
// (`slope` of it in natural units), and what the pass by source needs where there are features.
template <class F, class S, int UNROLL, class B, class G>
__device__ __forceinline__ void store_edges(
    const TraversalArgs& args, const Lane<S>& at, const G& owner, const B& batch, const Task& task,
    const Spread<S, UNROLL>& term, const Spread<S, UNROLL>& weight) {
    using O = typename F::Options;
    using T = typename S::T;
    #pragma unroll
    for (int i = 0; i < term.HELD; i++) {
        if (!owner.writes(at, i, batch.first, task.count)) continue;
        if constexpr (O::LOGIT)
            if (args.edge.grad_logit != nullptr)
                static_cast<T*>(args.edge.grad_logit)[(u64)owner.edge[i] * (unsigned)args.heads + at.head] =
                    Storage<T>::put(term.held[i]);
        if constexpr (O::EdgeFeatures::ANY) {
            const u64 position = task.begin + batch.first + term.index(at.within, i);
            args.edge.pairs[position * (unsigned)args.heads + at.head] =
                make_float2(weight.held[i], term.held[i]);
        }
    }
}

// By destination: gradients of the destination rows, edges and parameters, and row_stats for the
// pass by source. Warps stride over the tasks, keeping the parameter gradient in registers; each
// block writes one row of param_partials.
template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_backward_dst(const TraversalArgs& args) {
    using O = typename F::Options;
    constexpr int K = S::VALUES;
    constexpr bool WEIGHTED = O::EdgeFeatures::ANY;    // edges need their weight as well
    const unsigned first_task = (blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP) * S::TASKS;
    const unsigned step = gridDim.x * (BLOCK / WARP) * S::TASKS;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        const FeatureLanes<O> lanes(args, at);
        typename F::Params params;
        typename F::ParamGrad param_grad;
        params.load(args, at);
        param_grad.clear();
        for_tasks<S, UNROLL, O>(args, at, first_task, step, [&](const Owned<S, UNROLL, O>& own) {
            const Task& task = own.task;
            if (own.idle()) {
                write_zeros<true, F>(args, at, lanes, own);
                return;
            }
            const i64 stat = (i64)task.row * args.heads + at.head;
            typename F::Row row;
            typename F::DstGrad grad;
            FeatureGrad<O, S> features;
            Fixed<S> grad_out;
            float delta;
            row.load(args, at, task.row, own.exists);
            const auto lse = LogSum<O::LOGIT>::load(args.lse, stat);
            {
                Raw<S> raw, out;
                raw.template load<true>(args.grad_out, at, task.row, own.exists);
                out.template load<true>(args.out, at, task.row, own.exists);
                grad_out.set(raw, at.lane);
                delta = grad_out.dot(out, at.lane);
                delta = features.load(args, lanes, task.row, own.exists, delta);
                delta = head_sum<S>(delta);
            }
            if constexpr (O::COTANGENT) delta += args.edge.row_sums[stat];
            if (own.exists && at.within == 0) RowStats<O::LOGIT>{lse, delta}.store(args.row_stats, stat);
            grad.clear();
            for_batches<S, UNROLL, O>(args, own, at, [&](auto tail, const auto& batch) {
                constexpr bool MASKED = decltype(tail)::value;
                typename F::Src src[UNROLL];
                typename F::Edge edge[UNROLL];
                FeatureRows<O, S, UNROLL> feature;
                load_batch<UNROLL>(args, at, batch.ids, batch.first, task.count, MASKED, src);
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const bool live = !MASKED || batch.first + u < task.count;
                    edge[u].load(args, at, batch, u, live);
                }
                feature.load(args, lanes, batch, task.count, MASKED);
                batch.draw(args, at);
                Owner<F, S, UNROLL, true> owner;
                owner.load(args, at, batch, row.scalar());
                float score[UNROLL], dot[UNROLL];
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float source = F::source_score(params, src[u], at);
                    score[u] = F::score(params, src[u], row, edge[u], source, at);
                    dot[u] = grad_out.dot(F::value(src[u]), at.lane);
                }
                features.score(score, lanes, feature);
                features.product(dot, lanes, feature);
                Spread<S, UNROLL> ds, product;
                if constexpr (F::DOTS) ds.sum(score, at.within);
                product.sum(dot, at.within);
                #pragma unroll
                for (int i = 0; i < ds.HELD; i++) {
                    const float sum = ds.held[i], term = owner.term[i];
                    const float weight = lse.weight(F::logit(params, sum, term));
                    const float slope = weight * (owner.grad_weight(i, product.held[i]) - delta);
                    const Slopes<F> towards(params, sum, term);
                    ds.held[i] = slope * towards.sum;
                    if constexpr (WEIGHTED) product.held[i] = owner.kept(i, weight);
                    if constexpr (F::SCALARS)
                        if (!MASKED || batch.first + ds.index(at.within, i) < task.count)
                            grad.total += slope * towards.term;
                }
                if constexpr (O::LOGIT || WEIGHTED)
                    store_edges<F, S, UNROLL>(args, at, owner, batch, task, ds, product);
                if constexpr (WEIGHTED) features.add(args, at, lanes, feature, product, ds);
                if constexpr (F::SCALARS && !F::DOTS) return;
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float d = ds.get(u);
                    const bool live = !MASKED || batch.first + u < task.count;
                    if constexpr (O::ROWS) {
                        const unsigned number = batch.edge(u);
                        if (live && args.edge.grad_rows != nullptr)
                            F::store_edge_grad(args, at, params, src[u], row, edge[u], d, number);
                    }
                    if (live) F::grad_dst_param(src[u], row, edge[u], d, grad, param_grad);
                }
            });
            features.combine();
            if (own.exists) features.store(args, lanes, task);
            if constexpr (F::SCALARS) {
                const float total = Spread<S, UNROLL>::sum_owners(grad.total);
                if (own.exists)
                    store_scalar(F::DOTS ? args.second_grad : args.grad,
                                 F::DOTS ? args.second_partial : args.partial, args, at, task, total);
            }
            if constexpr (F::DOTS) {
                if (args.grad == nullptr || !own.exists) return;
                float g[K];
                grad.finish(args, at, params, g);
                if (task.slot < 0) store_row<S>(args.grad, at, task.row, g);
                else store_partial<S>(args.partial, at, task.slot, g);
            }
        });
        if constexpr (F::PARAMS) {
            if (args.param_partials == nullptr) continue;
            F::finish_param_dst(params, param_grad);
            store_param_grad<S>(args.param_partials, at, param_grad.sum);
        }
    }
}

// A gathered destination: its operand fragment, its output gradient and its row statistics.
template <class F, class S> struct Reader {
    typename F::Dst dst;
    Raw<S> grad_out;
    __device__ __forceinline__ void load(
        const TraversalArgs& args, const Lane<S>& at, int row, bool live) {
        dst.load(args, at, row, live);
        grad_out.load(args.grad_out, at, row, live);
    }
};

// Weights and logit gradients of a batch by source, computed again: each owner of an edge reads that
// edge's row statistics, and no other lane. What has both slopes adds the gradients of its terms to `total`.
template <class F, class S, int UNROLL, class B>
__device__ __forceinline__ void weigh_again(
    const TraversalArgs& args, const Lane<S>& at, const typename F::Params& params,
    const typename F::Source& source, const B& batch, const Reader<F, S> (&reader)[UNROLL],
    const typename F::Edge (&edge)[UNROLL], int count, Spread<S, UNROLL>& alpha,
    Spread<S, UNROLL>& ds, float& total) {
    using Stats = RowStats<F::Options::LOGIT>;
    Stats stats[Spread<S, UNROLL>::HELD];
    #pragma unroll
    for (int i = 0; i < alpha.HELD; i++) {
        const int u = alpha.index(at.within, i);
        int id = batch.ids[0];
        #pragma unroll
        for (int n = 1; n < UNROLL; n++) id = u == n ? batch.ids[n] : id;
        const u64 stat = at.head + (u64)(unsigned)id * (unsigned)args.heads;
        stats[i] = Stats::gather(args.row_stats, stat);
    }
    batch.draw(args, at);
    Owner<F, S, UNROLL, false> owner;
    owner.load(args, at, batch, source.scalar());
    float score[UNROLL], dot[UNROLL];
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        score[u] = source.score(params, reader[u].dst, edge[u], at);
        dot[u] = source.value.dot(reader[u].grad_out, at.lane);
    }
    if constexpr (F::DOTS) alpha.sum(score, at.within);
    ds.sum(dot, at.within);
    #pragma unroll
    for (int i = 0; i < alpha.HELD; i++) {
        const float sum = alpha.held[i], term = owner.term[i];
        const float weight = stats[i].lse.weight(F::logit(params, sum, term));
        const float slope = weight * (owner.grad_weight(i, ds.held[i]) - stats[i].delta);
        const Slopes<F> towards(params, sum, term);
        ds.held[i] = slope * towards.sum;
        if constexpr (GATED<F>)
            if (batch.first + ds.index(at.within, i) < count) total += slope * towards.term;
        alpha.held[i] = owner.kept(i, weight);
    }
}

// The same as the pass by destination left them, in its order: `edge` is an edge's place there.
template <class S, int UNROLL, class B>
__device__ __forceinline__ void weights_left(
    const TraversalArgs& args, const Lane<S>& at, const B& batch, Spread<S, UNROLL>& alpha,
    Spread<S, UNROLL>& ds) {
    #pragma unroll
    for (int i = 0; i < alpha.HELD; i++) {
        const unsigned place = batch.edge(alpha.index(at.within, i));
        const float2 pair = __ldg(args.edge.pairs + at.head + (u64)place * (unsigned)args.heads);
        alpha.held[i] = pair.x;
        ds.held[i] = pair.y;
    }
}

// By source: gradients of the source rows, and the part of the parameters' that belongs to sources.
// `indices` are destinations here; args.tasks split the rows of the transposed adjacency. Warps
// stride over the tasks as by destination.
template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_backward_src(const TraversalArgs& args) {
    using O = typename F::Options;
    constexpr int K = S::VALUES;
    const unsigned first_task = (blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP) * S::TASKS;
    const unsigned step = gridDim.x * (BLOCK / WARP) * S::TASKS;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        const FeatureLanes<O> lanes(args, at);
        typename F::Params params;
        params.load(args, at);
        // Touched once a task, so kept in shared memory: registers buy more warps.
        __shared__ float sums[F::PARAMS ? K : 1][BLOCK];
        if constexpr (F::PARAMS) {
            #pragma unroll
            for (int i = 0; i < K; i++) sums[i][threadIdx.x] = 0.f;
        }
        for_tasks<S, UNROLL, O>(args, at, first_task, step, [&](const Owned<S, UNROLL, O>& own) {
            const Task& task = own.task;
            if (own.idle()) {
                write_zeros<false, F>(args, at, lanes, own);
                return;
            }
            typename F::Src src;
            typename F::SrcGrad grad;
            if constexpr (!O::EdgeFeatures::ANY) src.template load<true>(args, at, task.row, own.exists);
            typename F::Source source;
            if constexpr (!O::EdgeFeatures::ANY) source.set(args, at, params, src, task.row);
            grad.clear();
            for_batches<S, UNROLL, O>(args, own, at, [&](auto tail, const auto& batch) {
                constexpr bool MASKED = decltype(tail)::value;
                Reader<F, S> reader[UNROLL];
                load_batch<UNROLL>(args, at, batch.ids, batch.first, task.count, MASKED, reader);
                typename F::Edge edge[UNROLL];
                #pragma unroll
                for (int u = 0; u < UNROLL; u++)
                    edge[u].load(args, at, batch, u, !MASKED || batch.first + u < task.count);
                Spread<S, UNROLL> alpha, ds;
                float total = 0.f;
                if constexpr (O::EdgeFeatures::ANY)
                    weights_left<S, UNROLL>(args, at, batch, alpha, ds);
                else
                    weigh_again<F, S, UNROLL>(
                        args, at, params, source, batch, reader, edge, task.count, alpha, ds, total);
                if constexpr (GATED<F>) grad.total += total;
                if constexpr (F::SCALARS && !F::DOTS) {
                    #pragma unroll
                    for (int i = 0; i < ds.HELD; i++)
                        if (!MASKED || batch.first + ds.index(at.within, i) < task.count)
                            grad.total += ds.held[i];
                }
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float a = alpha.get(u), d = F::DOTS ? ds.get(u) : 0.f;
                    float grad_out[K];
                    reader[u].grad_out.unpack(grad_out);
                    if (!MASKED || batch.first + u < task.count)
                        F::grad_src(src, reader[u].dst, edge[u], grad_out, a, d, grad);
                }
            });
            if constexpr (F::PARAMS) {
                typename F::ParamGrad param_grad;
                #pragma unroll
                for (int i = 0; i < K; i++) param_grad.sum[i] = sums[i][threadIdx.x];
                F::add_param_src(src, grad, param_grad);
                #pragma unroll
                for (int i = 0; i < K; i++) sums[i][threadIdx.x] = param_grad.sum[i];
            }
            if constexpr (F::SCALARS) {
                const float total = Spread<S, UNROLL>::sum_owners(grad.total);
                if (own.exists)
                    store_scalar(args.second_grad, args.second_partial, args, at, task, total);
            }
            if constexpr (F::SECOND) {
                if (args.second_grad != nullptr && own.exists) {
                    if (task.slot < 0) store_row<S>(args.second_grad, at, task.row, grad.second);
                    else store_partial<S>(args.second_partial, at, task.slot, grad.second);
                }
            }
            if (args.grad == nullptr || !own.exists) return;
            float g[K];
            grad.finish(args, at, params, g);
            if (task.slot < 0) store_row<S>(args.grad, at, task.row, g);
            else store_partial<S>(args.partial, at, task.slot, g);
        });
        if constexpr (F::PARAMS) {
            if (args.param_partials == nullptr) continue;
            typename F::ParamGrad param_grad;
            #pragma unroll
            for (int i = 0; i < K; i++) param_grad.sum[i] = sums[i][threadIdx.x];
            F::finish_param_src(params, param_grad);
            store_param_grad<S>(args.param_partials, at, param_grad.sum);
        }
    }
}

// (lse, <grad_out, out>) of every row, when the pass by destination is not needed. A group owns
// one row; tasks are not read (num_tasks: rows).
template <class S, class O>
__device__ __forceinline__ void softmax_row_stats(const TraversalArgs& args) {
    constexpr int K = S::VALUES;
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const i64 row = warp * S::TASKS + (threadIdx.x % WARP) / S::GROUP;
    const bool exists = row < args.num_tasks;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        Raw<S> a_raw, b_raw;
        float a[K], b[K], delta = 0.f;
        a_raw.load(args.grad_out, at, (int)row, exists);
        b_raw.load(args.out, at, (int)row, exists);
        a_raw.unpack(a);
        b_raw.unpack(b);
        #pragma unroll
        for (int i = 0; i < K; i++) delta = fmaf(a[i], b[i], delta);
        delta = head_sum<S>(delta);
        const i64 stat = row * args.heads + at.head;
        if constexpr (O::COTANGENT)
            if (exists) delta += args.edge.row_sums[stat];
        if (exists && at.within == 0)
            RowStats<O::LOGIT>{LogSum<O::LOGIT>::load(args.lse, stat), delta}.store(args.row_stats, stat);
    }
}

}  // namespace gnnb

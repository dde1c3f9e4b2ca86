// Forward pass of the softmax-weighted sum: online softmax, one state a task.
// Mapping, bytes and determinism: traversal.cuh.
#pragma once
#include "features.cuh"
#include "traversal.cuh"

namespace gnnb {

// Online softmax of one task.
template <class F, class S> struct Softmax {
    using O = typename F::Options;
    static constexpr int K = S::VALUES;
    float top, sum, acc[K];
    FeatureSum<O, S> features;

    __device__ __forceinline__ void clear() {
        top = LOWEST;
        sum = 0.f;
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] = 0.f;
        features.clear();
    }

    template <bool EXACT, int UNROLL>
    __device__ __forceinline__ void run(
        const TraversalArgs& args, const Lane<S>& at, const FeatureLanes<O>& lanes,
        const Owned<S, UNROLL, O>& own, const typename F::Params& params,
        const typename F::Row& row) {
        const Task& task = own.task;
        clear();
        for_batches<S, UNROLL, O>(args, own, at, [&](auto tail, const auto& batch) {
            constexpr bool MASKED = EXACT || decltype(tail)::value;
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
            Spread<S, UNROLL> logit;
            if constexpr (F::DOTS) {
                float score[UNROLL];
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    if constexpr (EXACT) {
                        score[u] = F::score_exact(args, at, params, src[u], row, edge[u]);
                    } else {
                        const float source = F::source_score(params, src[u], at);
                        score[u] = F::score(params, src[u], row, edge[u], source, at);
                    }
                }
                features.score(score, lanes, feature);
                logit.sum(score, at.within);
            }
            float most = LOWEST;
            #pragma unroll
            for (int i = 0; i < logit.HELD; i++) {
                logit.held[i] = F::logit(params, logit.held[i], owner.term[i]);
                if (MASKED && batch.first + logit.index(at.within, i) >= task.count)
                    logit.held[i] = negative_infinity();
                most = fmaxf(most, logit.held[i]);
            }
            most = logit.max_owners(most);
            if (__any_sync(ALL_LANES, most > top)) rescale(most);
            #pragma unroll
            for (int i = 0; i < logit.HELD; i++) {
                logit.held[i] = exp2_approx(logit.held[i] - top);
                sum += logit.held[i];
                logit.held[i] = owner.kept(i, logit.held[i]);
            }
            #pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const float p = logit.get(u);
                float v[K];
                F::value(src[u]).unpack(v);
                #pragma unroll
                for (int i = 0; i < K; i++) acc[i] = fmaf(p, v[i], acc[i]);
            }
            features.add(logit, lanes, feature);
        });
        sum = Spread<S, UNROLL>::sum_owners(sum);
    }

    __device__ __forceinline__ void rescale(float most) {
        const float next = fmaxf(top, most), factor = exp2_approx(top - next);
        top = next;
        sum *= factor;
        scale(factor);
    }
    __device__ __forceinline__ void scale(float factor) {
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] *= factor;
        features.scale(factor);
    }
};

template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_forward(const TraversalArgs& args) {
    using O = typename F::Options;
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (warp * S::TASKS >= args.num_tasks) return;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        const FeatureLanes<O> lanes(args, at);
        Owned<S, UNROLL, O> own(packed_task(args, at, warp * S::TASKS));
        const Task& task = own.task;
        typename F::Params params;
        typename F::Row row;
        Softmax<F, S> state;
        state.clear();
        if (!own.idle()) {
            params.load(args, at);
            row.load(args, at, task.row, own.exists);
            state.features.load(args, lanes, task.row, own.exists);
            own.load_ids(args, at);
            state.template run<false>(args, at, lanes, own, params, row);
            // NaN: an infinity in the inputs (or a NaN, which stays). Rare, so one edge at a time
            // is enough, and it costs the fast path no registers.
            if constexpr (F::EXACT) {
                if (__any_sync(ALL_LANES, state.sum != state.sum)) {
                    const Owned<S, 1, O> again(args, at, own);
                    state.template run<true>(args, at, lanes, again, params, row);
                }
            }
        }
        state.features.combine();
        if (!own.exists) continue;
        const i64 stat = (i64)(task.slot < 0 ? task.row : task.slot) * args.heads + at.head;
        if (task.slot < 0) {
            // An empty row is 0; a row whose logits are all -inf has sum 0 and becomes NaN.
            const float inverse = task.count == 0 ? 0.f : 1.f / state.sum;
            state.scale(inverse);
            store_row<S>(args.out, at, task.row, state.acc);
            if (at.within == 0) {
                const float log_sum = log2_approx(state.sum);
                LogSum<O::LOGIT>::store(args.lse, stat, task.count == 0 ? 0.f : state.top,
                                        task.count == 0 ? 0.f : log_sum);
            }
        } else {
            store_partial<S>(args.partial, at, task.slot, state.acc);
            if (at.within == 0) args.partial_stats[stat] = make_float2(state.top, state.sum);
        }
        state.features.store(args, lanes, task);
    }
}

}  // namespace gnnb

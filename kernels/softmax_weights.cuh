// Attention weights w_e after dropout, from the saved log-sum-exp: written in the caller's edge order,
// or multiplied with their gradients and summed over each row, which the softmax's derivative needs.
// Mapping and determinism: traversal.cuh. A row an edge is read again.
#pragma once
#include "features.cuh"
#include "softmax_backward.cuh"
#include "traversal.cuh"

namespace gnnb {

template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_weights(const TraversalArgs& args) {
    using O = typename F::Options;
    using T = typename S::T;
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
        FeatureSum<O, S> features;
        params.load(args, at);
        row.load(args, at, task.row, own.exists);
        features.load(args, lanes, task.row, own.exists);
        own.load_ids(args, at);
        const auto lse = LogSum<O::LOGIT>::load(args.lse, (i64)task.row * args.heads + at.head);
        float total = 0.f;
        for_batches<S, UNROLL, O>(args, own, at, [&](auto tail, const auto& batch) {
            constexpr bool MASKED = decltype(tail)::value;
            typename F::Src src[UNROLL];
            typename F::Edge edge[UNROLL];
            FeatureRows<O, S, UNROLL> feature;
            load_batch<UNROLL>(args, at, batch.ids, batch.first, task.count, MASKED, src);
            feature.load(args, lanes, batch, task.count, MASKED);
            batch.draw(args, at);
            float score[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const bool live = !MASKED || batch.first + u < task.count;
                edge[u].load(args, at, batch, u, live);
                const float source = F::source_score(params, src[u], at);
                score[u] = F::score(params, src[u], row, edge[u], source, at);
            }
            features.score(score, lanes, feature);
            Owner<F, S, UNROLL, true> owner;
            owner.load(args, at, batch, row.scalar());
            Spread<S, UNROLL> logit;
            if constexpr (F::DOTS) logit.sum(score, at.within);
            #pragma unroll
            for (int i = 0; i < logit.HELD; i++) {
                const float weight =
                    owner.kept(i, lse.weight(F::logit(params, logit.held[i], owner.term[i])));
                if (batch.first + logit.index(at.within, i) >= task.count) continue;
                if constexpr (O::COTANGENT) total = fmaf(weight, owner.cotangent[i], total);
                else if (at.within % Spread<S, UNROLL>::REPEAT == 0)
                    static_cast<T*>(args.edge.weights)[(u64)owner.edge[i] * (unsigned)args.heads + at.head]
                        = Storage<T>::put(weight);
            }
        });
        if constexpr (O::COTANGENT) {
            total = Spread<S, UNROLL>::sum_owners(total);
            if (!own.exists || at.within != 0) continue;
            float* to = task.slot < 0 ? args.edge.row_sums + (i64)task.row * args.heads
                                      : args.partial + (i64)task.slot * args.heads;
            to[at.head] = total;
        }
    }
}

}  // namespace gnnb

// Forward pass of the softmax-weighted sum: online softmax, one state a task.
// Mapping, bytes and determinism: traversal.cuh.
#pragma once
#include "traversal.cuh"

namespace gnnb {

// Online softmax of one task.
template <class F, class S> struct Softmax {
    static constexpr int K = S::VALUES;
    float top, sum, acc[K];

    __device__ __forceinline__ void clear() {
        top = LOWEST;
        sum = 0.f;
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] = 0.f;
    }

    template <bool EXACT, int UNROLL>
    __device__ __forceinline__ void run(
        const TraversalArgs& args, const Lane<S>& at, const Owned<S, UNROLL>& own,
        const typename F::Params& params, const typename F::Dst& dst) {
        const Task& task = own.task;
        clear();
        for_batches<S, UNROLL>(args.indices, own, at, [&](auto tail, int first, auto& ids) {
            constexpr bool MASKED = EXACT || decltype(tail)::value;
            typename F::Src src[UNROLL];
            load_batch<UNROLL>(args, at, ids, first, task.count, MASKED, src);
            float score[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL; u++)
                score[u] = EXACT ? F::score_exact(args, at, params, src[u], dst)
                    : F::score(params, src[u], dst, F::source_score(params, src[u], at), at);
            Spread<S, UNROLL> logit;
            logit.sum(score, at.within);
            float most = LOWEST;
            #pragma unroll
            for (int i = 0; i < logit.HELD; i++) {
                if (MASKED && first + logit.index(at.within, i) >= task.count)
                    logit.held[i] = negative_infinity();
                most = fmaxf(most, logit.held[i]);
            }
            most = logit.max_owners(most);
            if (__any_sync(ALL_LANES, most > top)) rescale(most);
            #pragma unroll
            for (int i = 0; i < logit.HELD; i++) {
                logit.held[i] = exp2_approx(logit.held[i] - top);
                sum += logit.held[i];
            }
            #pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const float p = logit.get(u);
                float v[K];
                F::value(src[u]).unpack(v);
                #pragma unroll
                for (int i = 0; i < K; i++) acc[i] = fmaf(p, v[i], acc[i]);
            }
        });
        sum = Spread<S, UNROLL>::sum_owners(sum);
    }

    __device__ __forceinline__ void rescale(float most) {
        const float next = fmaxf(top, most), scale = exp2_approx(top - next);
        top = next;
        sum *= scale;
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] *= scale;
    }
};

template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_forward(const TraversalArgs& args) {
    constexpr int K = S::VALUES;
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (warp * S::TASKS >= args.num_tasks) return;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        Owned<S, UNROLL> own(packed_task(args, at, warp * S::TASKS));
        const Task& task = own.task;
        typename F::Params params;
        typename F::Dst dst;
        Softmax<F, S> state;
        state.clear();
        if (!own.idle()) {
            params.load(args, at);
            dst.template load<true>(args, at, task.row, own.exists);
            own.load_ids(args, at);
            state.template run<false>(args, at, own, params, dst);
            // NaN: an infinity in the inputs (or a NaN, which stays). Rare, so one edge at a time
            // is enough, and it costs the fast path no registers.
            if (__any_sync(ALL_LANES, state.sum != state.sum)) {
                const Owned<S, 1> again(args, at, own);
                state.template run<true>(args, at, again, params, dst);
            }
        }
        if (!own.exists) continue;
        const i64 stat = (i64)(task.slot < 0 ? task.row : task.slot) * args.heads + at.head;
        if (task.slot < 0) {
            // An empty row is 0; a row whose logits are all -inf has sum 0 and becomes NaN.
            const float inverse = task.count == 0 ? 0.f : 1.f / state.sum;
            #pragma unroll
            for (int i = 0; i < K; i++) state.acc[i] = task.count == 0 ? 0.f : state.acc[i] * inverse;
            store_row<S>(args.out, at, task.row, state.acc);
            if (at.within == 0)
                args.lse[stat] = task.count == 0 ? 0.f : state.top + log2_approx(state.sum);
        } else {
            store_partial<S>(args.partial, at, task.slot, state.acc);
            if (at.within == 0) args.partial_stats[stat] = make_float2(state.top, state.sum);
        }
    }
}

}  // namespace gnnb

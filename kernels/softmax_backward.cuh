// Backward passes of the softmax-weighted sum. Two of them, so that nothing is added atomically:
// by destination for the gradients of destination rows and parameters, by source for those of
// source rows. Scores are computed again; the saved log-sum-exp and <grad_out, out> of a row are
// all that the softmax's derivative needs. Mapping, bytes and determinism: traversal.cuh.
#pragma once
#include "dots.cuh"
#include "traversal.cuh"

namespace gnnb {

// Softmax weight of an edge from its score and its row's log-sum-exp. A score that is NaN or +inf while
// the row is finite belongs to a masked edge: where the exact logit is -inf, `score` may give
// inf - inf, or +inf from an overflow (the forward pass took score_exact). Its weight is 0.
__device__ __forceinline__ float weight_of(float score, float lse) {
    return !(score <= LARGEST) && fabsf(lse) <= LARGEST ? 0.f : exp2_approx(score - lse);
}

template <class S, int UNROLL>
__device__ __forceinline__ void write_zeros(
    const TraversalArgs& args, const Lane<S>& at, const Owned<S, UNROLL>& own) {
    if (args.grad == nullptr || !own.exists) return;
    float zeros[S::VALUES];
    #pragma unroll
    for (int i = 0; i < S::VALUES; i++) zeros[i] = 0.f;
    store_row<S>(args.grad, at, own.task.row, zeros);  // an empty row has one task
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

// By destination: gradients of the destination rows and of the parameters, and row_stats for the
// pass by source. Warps stride over the tasks, keeping the parameter gradient in registers; each
// block writes one row of param_partials.
template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_backward_dst(const TraversalArgs& args) {
    constexpr int K = S::VALUES;
    const unsigned first_task = (blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP) * S::TASKS;
    const unsigned step = gridDim.x * (BLOCK / WARP) * S::TASKS;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        typename F::Params params;
        typename F::ParamGrad param_grad;
        params.load(args, at);
        param_grad.clear();
        for_tasks<S, UNROLL>(args, at, first_task, step, [&](const Owned<S, UNROLL>& own) {
            const Task& task = own.task;
            if (own.idle()) {
                write_zeros(args, at, own);
                return;
            }
            const i64 stat = (i64)task.row * args.heads + at.head;
            typename F::Dst dst;
            typename F::DstGrad grad;
            Fixed<S> grad_out;
            float delta;
            dst.template load<true>(args, at, task.row, own.exists);
            const float lse = args.lse[stat];
            {
                Raw<S> raw, out;
                raw.template load<true>(args.grad_out, at, task.row, own.exists);
                out.template load<true>(args.out, at, task.row, own.exists);
                grad_out.set(raw, at.lane);
                delta = head_sum<S>(grad_out.dot(out, at.lane));
            }
            if (own.exists && at.within == 0) args.row_stats[stat] = make_float2(lse, delta);
            grad.clear();
            for_batches<S, UNROLL>(args.indices, own, at, [&](auto tail, int first, auto& ids) {
                constexpr bool MASKED = decltype(tail)::value;
                typename F::Src src[UNROLL];
                load_batch<UNROLL>(args, at, ids, first, task.count, MASKED, src);
                float score[UNROLL], dot[UNROLL];
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    score[u] = F::score(params, src[u], dst, F::source_score(params, src[u], at), at);
                    dot[u] = grad_out.dot(F::value(src[u]), at.lane);
                }
                Spread<S, UNROLL> ds, product;
                ds.sum(score, at.within);
                product.sum(dot, at.within);
                #pragma unroll
                for (int i = 0; i < ds.HELD; i++)
                    ds.held[i] = weight_of(ds.held[i], lse) * (product.held[i] - delta);
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float d = ds.get(u);
                    if (!MASKED || first + u < task.count)
                        F::grad_dst_param(src[u], dst, d, grad, param_grad);
                }
            });
            if (args.grad == nullptr || !own.exists) return;
            float g[K];
            grad.finish(args, at, params, g);
            if (task.slot < 0) store_row<S>(args.grad, at, task.row, g);
            else store_partial<S>(args.partial, at, task.slot, g);
        });
        if (args.param_partials == nullptr) continue;
        F::finish_param_dst(params, param_grad);
        store_param_grad<S>(args.param_partials, at, param_grad.sum);
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

// By source: gradients of the source rows, and the part of the parameters' that belongs to sources.
// `indices` are destinations here; args.tasks split the rows of the transposed adjacency. Warps
// stride over the tasks as by destination.
template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_backward_src(const TraversalArgs& args) {
    constexpr int K = S::VALUES;
    const unsigned first_task = (blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP) * S::TASKS;
    const unsigned step = gridDim.x * (BLOCK / WARP) * S::TASKS;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        typename F::Params params;
        params.load(args, at);
        // Touched once a task, so kept in shared memory: registers buy more warps.
        __shared__ float sums[K][BLOCK];
        #pragma unroll
        for (int i = 0; i < K; i++) sums[i][threadIdx.x] = 0.f;
        for_tasks<S, UNROLL>(args, at, first_task, step, [&](const Owned<S, UNROLL>& own) {
            const Task& task = own.task;
            if (own.idle()) {
                write_zeros(args, at, own);
                return;
            }
            typename F::Src src;
            typename F::SrcGrad grad;
            src.template load<true>(args, at, task.row, own.exists);
            const float source = F::source_score(params, src, at);
            Fixed<S> value;
            value.set(F::value(src), at.lane);
            grad.clear();
            for_batches<S, UNROLL>(args.indices, own, at, [&](auto tail, int first, auto& ids) {
                constexpr bool MASKED = decltype(tail)::value;
                Reader<F, S> reader[UNROLL];
                load_batch<UNROLL>(args, at, ids, first, task.count, MASKED, reader);
                // Each owner of an edge reads that edge's statistics, and no other lane.
                Spread<S, UNROLL> alpha, ds;
                float2 stats[alpha.HELD];
                #pragma unroll
                for (int i = 0; i < alpha.HELD; i++) {
                    const int u = alpha.index(at.within, i);
                    int id = ids[0];
                    #pragma unroll
                    for (int n = 1; n < UNROLL; n++) id = u == n ? ids[n] : id;
                    stats[i] = __ldg(args.row_stats + at.head + (u64)(unsigned)id * (unsigned)args.heads);
                }
                float score[UNROLL], dot[UNROLL];
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    score[u] = F::score(params, src, reader[u].dst, source, at);
                    dot[u] = value.dot(reader[u].grad_out, at.lane);
                }
                alpha.sum(score, at.within);
                ds.sum(dot, at.within);
                #pragma unroll
                for (int i = 0; i < alpha.HELD; i++) {
                    alpha.held[i] = weight_of(alpha.held[i], stats[i].x);
                    ds.held[i] = alpha.held[i] * (ds.held[i] - stats[i].y);
                }
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float a = alpha.get(u), d = ds.get(u);
                    float grad_out[K];
                    reader[u].grad_out.unpack(grad_out);
                    if (!MASKED || first + u < task.count)
                        F::grad_src(src, reader[u].dst, grad_out, a, d, grad);
                }
            });
            typename F::ParamGrad param_grad;
            #pragma unroll
            for (int i = 0; i < K; i++) param_grad.sum[i] = sums[i][threadIdx.x];
            F::add_param_src(src, grad, param_grad);
            #pragma unroll
            for (int i = 0; i < K; i++) sums[i][threadIdx.x] = param_grad.sum[i];
            if (args.grad == nullptr || !own.exists) return;
            float g[K];
            grad.finish(args, at, params, g);
            if (task.slot < 0) store_row<S>(args.grad, at, task.row, g);
            else store_partial<S>(args.partial, at, task.slot, g);
        });
        if (args.param_partials == nullptr) continue;
        typename F::ParamGrad param_grad;
        #pragma unroll
        for (int i = 0; i < K; i++) param_grad.sum[i] = sums[i][threadIdx.x];
        F::finish_param_src(params, param_grad);
        store_param_grad<S>(args.param_partials, at, param_grad.sum);
    }
}

// (lse, <grad_out, out>) of every row, when the pass by destination is not needed. A group owns
// one row; tasks are not read (num_tasks: rows).
template <class S>
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
        if (exists && at.within == 0) args.row_stats[stat] = make_float2(args.lse[stat], delta);
    }
}

}  // namespace gnnb

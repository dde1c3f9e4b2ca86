// Traversal template, softmax-weighted sum: out_i = sum_e softmax_i(score_e) * value_e.
//
// Mapping. A task is a chunk of at most C neighbours of one row (so that hubs do not serialise).
// Shape::GROUP lanes own a task: HEADS heads of LANES lanes, VALUES columns a lane; Shape::TASKS
// tasks stand side by side in a warp, of like length since tasks come longest first. A group loads
// UNROLL neighbour rows before it uses the first; their scores are summed over the lanes of a head
// by one butterfly that leaves each edge's score with a few lanes (Spread), so that its exponential
// is computed there alone. Blocks have four warps; blockIdx.y runs over blocks of HEADS heads.
// Rows of several chunks write partials, merged in slot order by merge.cuh.
//
// Bytes an edge (row = H * D values): forward 4 + row; by destination 4 + row; by source
// 4 + 2 rows + 8 H. Nothing edge-wise is written. Saved for backward: log-sum-exp, 4 H bytes a row.
//
// Determinism. No atomics. The order of every sum is fixed by the tasks and the grid, so equal
// inputs on one device give equal bits.
//
// A functor F (functors/*.cuh) gives Params, Src, Dst (loaded fragments), source_score, score,
// score_exact, value, the accumulators DstGrad, ParamGrad, SrcGrad with grad_dst_param and
// grad_src, and the parameter gradients of both passes.
#pragma once
#include "common.cuh"

namespace gnnb {

// Arguments of all passes; unused pointers are null.
struct TraversalArgs {
    const int4* tasks;
    i64 num_tasks;
    const int* indices;
    i64 heads, dim;
    const void* src[2];          // tables read at the source
    const void* dst[2];          // tables read at the destination
    const void* param[2];
    float scalar[4];
    void* out;                   // forward: written; backward: read
    float* lse;                  // [N, H] base-2 log-sum-exp, up to a constant of the row
    const void* grad_out;
    float2* row_stats;           // [N, H] (lse, <grad_out, out>), written by destination
    void* grad;                  // gradient of the rows of this direction, or null
    float* param_partials;       // [gridDim.x, H * D], or null
    float* partial;              // [slots, H * D]
    float2* partial_stats;       // [slots, H] (max, sum)
};

// The task of this lane's group, or an empty one past the end. `idle`: no group of the warp has an
// edge, so that rows are written without reading anything.
template <class S> struct Owned {
    Task task;
    bool exists, idle;
    __device__ __forceinline__ Owned(const TraversalArgs& args, i64 index) {
        exists = index < args.num_tasks;
        task = Task{0, 0, -1, 0};
        if (exists) task = load_task(args.tasks, index);
        idle = !__any_sync(ALL_LANES, task.count > 0);
    }
};

// Call body(masked, first, ids) for every batch of UNROLL neighbours: `first` is the position of
// the batch in the task, ids its neighbour ids. Batches that are whole in all groups of the warp
// come with Flag<false>; in the others positions past the end have id 0 and are to be masked.
// Every lane of the warp takes part until the longest task of the warp is done.
template <class S, int UNROLL, class Body>
__device__ __forceinline__ void for_batches(
    const int* indices, const Task& task, const Lane<S>& at, Body body) {
    constexpr int LOADS = UNROLL > S::GROUP ? UNROLL / S::GROUP : 1;  // ids a lane loads at once
    constexpr int STEP = LOADS * S::GROUP;
    int longest = task.count, shortest = task.count;
    #pragma unroll
    for (int o = S::GROUP; o < WARP; o <<= 1) {
        longest = max(longest, __shfl_xor_sync(ALL_LANES, longest, o));
        shortest = min(shortest, __shfl_xor_sync(ALL_LANES, shortest, o));
    }
    const int place = at.lane % S::GROUP, leader = at.lane - place;
    const int* list = indices + task.begin;
    int mine[LOADS];
    #pragma unroll
    for (int k = 0; k < LOADS; k++) {
        const int position = k * S::GROUP + place;
        mine[k] = position < task.count ? __ldg(list + position) : 0;
    }
    #pragma unroll 1
    for (int base = 0; base < longest; base += STEP) {
        int ahead[LOADS];       // the next ids arrive while these are worked on
        #pragma unroll
        for (int k = 0; k < LOADS; k++) {
            const int position = base + STEP + k * S::GROUP + place;
            ahead[k] = position < task.count ? __ldg(list + position) : 0;
        }
        #pragma unroll 1
        for (int offset = 0; offset < STEP; offset += UNROLL) {
            const int first = base + offset;
            if (first >= longest) break;
            int ids[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const int position = offset + u;
                const int k = LOADS == 1 ? 0 : u / S::GROUP;
                ids[u] = __shfl_sync(ALL_LANES, mine[k], leader + position % S::GROUP);
            }
            if (first + UNROLL <= shortest) body(Flag<false>(), first, ids);
            else body(Flag<true>(), first, ids);
        }
        #pragma unroll
        for (int k = 0; k < LOADS; k++) mine[k] = ahead[k];
    }
}

template <int UNROLL, class S, class Fragment>
__device__ __forceinline__ void load_batch(
    const TraversalArgs& args, const Lane<S>& at, const int (&ids)[UNROLL], int first, int count,
    bool masked, Fragment (&fragments)[UNROLL]) {
    #pragma unroll
    for (int u = 0; u < UNROLL; u++)
        fragments[u].load(args, at, ids[u], !masked || first + u < count);
}

// ---------------------------------------------------------------------------- forward

// Online softmax of one task.
template <class F, class S, int UNROLL> struct Softmax {
    static constexpr int K = S::VALUES;
    float top, shift, sum, acc[K];

    __device__ __forceinline__ void clear() {
        top = negative_infinity();
        shift = 0.f;
        sum = 0.f;
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] = 0.f;
    }

    template <bool EXACT>
    __device__ __forceinline__ void run(
        const TraversalArgs& args, const Lane<S>& at, const Task& task,
        const typename F::Params& params, const typename F::Dst& dst) {
        clear();
        for_batches<S, UNROLL>(args.indices, task, at, [&](auto tail, int first, auto& ids) {
            constexpr bool MASKED = EXACT || decltype(tail)::value;
            typename F::Src src[UNROLL];
            load_batch<UNROLL>(args, at, ids, first, task.count, MASKED, src);
            float score[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL; u++)
                score[u] = EXACT ? F::score_exact(params, src[u], dst)
                                 : F::score(params, src[u], dst, F::source_score(params, src[u]));
            Spread<S, UNROLL> logit;
            logit.sum(score, at.within);
            float most = negative_infinity();
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
                logit.held[i] = exp2_approx(logit.held[i] - shift);
                sum += logit.held[i];
            }
            #pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                const float p = logit.get(u, at);
                float v[K];
                F::value(src[u], v);
                #pragma unroll
                for (int i = 0; i < K; i++) acc[i] = fmaf(p, v[i], acc[i]);
            }
        });
        sum = Spread<S, UNROLL>::sum_owners(sum);
    }

    // While only -inf was seen, 0 is subtracted, so that exp2 gives 0 and not NaN.
    __device__ __forceinline__ void rescale(float most) {
        const float next = fmaxf(top, most);
        shift = next == negative_infinity() ? 0.f : next;
        const float scale = exp2_approx(top - shift);
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
    const Owned<S> own(args, warp * S::TASKS + (threadIdx.x % WARP) / S::GROUP);
    const Task& task = own.task;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        typename F::Params params;
        typename F::Dst dst;
        Softmax<F, S, UNROLL> state;
        state.clear();
        if (!own.idle) {
            params.load(args, at);
            dst.template load<true>(args, at, task.row, own.exists);
            state.template run<false>(args, at, task, params, dst);
            // NaN: an infinity in the inputs (or a NaN, which stays).
            if (__any_sync(ALL_LANES, state.sum != state.sum))
                state.template run<true>(args, at, task, params, dst);
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

// ---------------------------------------------------------------------------- backward

template <class S>
__device__ __forceinline__ void write_zeros(
    const TraversalArgs& args, const Lane<S>& at, const Owned<S>& own) {
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
    const i64 first_task = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP * S::TASKS;
    const i64 step = (i64)gridDim.x * (BLOCK / WARP) * S::TASKS;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        typename F::Params params;
        typename F::ParamGrad param_grad;
        params.load(args, at);
        param_grad.clear();
        #pragma unroll 1
        for (i64 index = first_task; index < args.num_tasks; index += step) {
            const Owned<S> own(args, index + at.group);
            const Task& task = own.task;
            if (own.idle) {
                write_zeros(args, at, own);
                continue;
            }
            const i64 stat = (i64)task.row * args.heads + at.head;
            typename F::Dst dst;
            typename F::DstGrad grad;
            Raw<S> raw;
            float grad_out[K], delta = 0.f;
            dst.template load<true>(args, at, task.row, own.exists);
            raw.template load<true>(args.grad_out, at, task.row, own.exists);
            raw.unpack(grad_out);
            raw.template load<true>(args.out, at, task.row, own.exists);
            const float lse = args.lse[stat];
            {
                float out[K];
                raw.unpack(out);
                #pragma unroll
                for (int i = 0; i < K; i++) delta = fmaf(grad_out[i], out[i], delta);
                delta = head_sum<S>(delta);
            }
            if (own.exists && at.within == 0) args.row_stats[stat] = make_float2(lse, delta);
            grad.clear();
            for_batches<S, UNROLL>(args.indices, task, at, [&](auto tail, int first, auto& ids) {
                constexpr bool MASKED = decltype(tail)::value;
                typename F::Src src[UNROLL];
                load_batch<UNROLL>(args, at, ids, first, task.count, MASKED, src);
                float score[UNROLL], dot[UNROLL];
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    float v[K];
                    score[u] = F::score(params, src[u], dst, F::source_score(params, src[u]));
                    F::value(src[u], v);
                    dot[u] = 0.f;
                    #pragma unroll
                    for (int i = 0; i < K; i++) dot[u] = fmaf(grad_out[i], v[i], dot[u]);
                }
                Spread<S, UNROLL> ds, product;
                ds.sum(score, at.within);
                product.sum(dot, at.within);
                #pragma unroll
                for (int i = 0; i < ds.HELD; i++)
                    ds.held[i] = exp2_approx(ds.held[i] - lse) * (product.held[i] - delta);
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float d = ds.get(u, at);
                    if (!MASKED || first + u < task.count)
                        F::grad_dst_param(src[u], dst, d, grad, param_grad);
                }
            });
            if (args.grad == nullptr || !own.exists) continue;
            float g[K];
            grad.finish(params, g);
            if (task.slot < 0) store_row<S>(args.grad, at, task.row, g);
            else store_partial<S>(args.partial, at, task.slot, g);
        }
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
    const i64 first_task = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP * S::TASKS;
    const i64 step = (i64)gridDim.x * (BLOCK / WARP) * S::TASKS;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        typename F::Params params;
        typename F::ParamGrad param_grad;
        params.load(args, at);
        param_grad.clear();
        #pragma unroll 1
        for (i64 index = first_task; index < args.num_tasks; index += step) {
            const Owned<S> own(args, index + at.group);
            const Task& task = own.task;
            if (own.idle) {
                write_zeros(args, at, own);
                continue;
            }
            typename F::Src src;
            typename F::SrcGrad grad;
            src.template load<true>(args, at, task.row, own.exists);
            const float source = F::source_score(params, src);
            grad.clear();
            for_batches<S, UNROLL>(args.indices, task, at, [&](auto tail, int first, auto& ids) {
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
                    float grad_out[K], value[K];
                    reader[u].grad_out.unpack(grad_out);
                    F::value(src, value);
                    score[u] = F::score(params, src, reader[u].dst, source);
                    dot[u] = 0.f;
                    #pragma unroll
                    for (int i = 0; i < K; i++) dot[u] = fmaf(grad_out[i], value[i], dot[u]);
                }
                alpha.sum(score, at.within);
                ds.sum(dot, at.within);
                #pragma unroll
                for (int i = 0; i < alpha.HELD; i++) {
                    alpha.held[i] = exp2_approx(alpha.held[i] - stats[i].x);
                    ds.held[i] = alpha.held[i] * (ds.held[i] - stats[i].y);
                }
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float a = alpha.get(u, at), d = ds.get(u, at);
                    float grad_out[K];
                    reader[u].grad_out.unpack(grad_out);
                    if (!MASKED || first + u < task.count)
                        F::grad_src(src, reader[u].dst, grad_out, a, d, grad);
                }
            });
            F::add_param_src(src, grad, param_grad);
            if (args.grad == nullptr || !own.exists) continue;
            float g[K];
            grad.finish(params, g);
            if (task.slot < 0) store_row<S>(args.grad, at, task.row, g);
            else store_partial<S>(args.partial, at, task.slot, g);
        }
        if (args.param_partials == nullptr) continue;
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

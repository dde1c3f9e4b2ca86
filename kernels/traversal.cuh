// Traversal template, softmax-weighted sum: out_i = sum_e softmax_i(score_e) * value_e.
//
// Mapping. A warp owns one task: a chunk of at most C neighbours of one row (so that hubs do not
// serialise). Within the warp, Shape::EDGES neighbours stand side by side, each read by
// Shape::GROUP lanes (HEADS heads of LANES lanes); UNROLL neighbours a group are loaded before the
// first is used. Each group keeps its own online softmax; groups are merged by shuffles at the end.
// Blocks have four warps; blockIdx.y runs over blocks of HEADS heads.
// Rows of several chunks write partials, merged in slot order by merge.cuh.
//
// Bytes an edge (row = H * D values): forward 4 + row; by destination 4 + row; by source
// 4 + 2 rows + 8 H. Nothing edge-wise is written. Saved for backward: log-sum-exp, 4 H bytes a row.
//
// Determinism. No atomics. The order of every sum is fixed by the tasks and the grid, so equal
// inputs on one device give equal bits.
//
// A functor F (functors/*.cuh) gives Params, Src, Dst (loaded fragments), score, value, and the
// accumulators DstGrad, ParamGrad, SrcGrad with grad_dst_param and grad_src.
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
    float* lse;                  // [N, H] base-2 log-sum-exp
    const void* grad_out;
    float2* row_stats;           // [N, H] (lse, <grad_out, out>), written by destination
    void* grad;                  // gradient of the rows of this direction, or null
    float* param_partials;       // [gridDim.x, H * D], or null
    float* partial;              // [slots, H * D]
    float2* partial_stats;       // [slots, H] (max, sum)
};

// Up to 32 neighbour ids, one a lane.
__device__ __forceinline__ int load_indices(const int* indices, const Task& task, int base, int lane) {
    return __ldg(indices + task.begin + min(base + lane, task.count - 1));
}

// Complete UNROLL values over the lanes of a head, interleaved so that the shuffles overlap.
template <class S, int UNROLL> __device__ __forceinline__ void head_sums(float (&x)[UNROLL]) {
    #pragma unroll
    for (int o = S::LANES / 2; o; o >>= 1)
        #pragma unroll
        for (int u = 0; u < UNROLL; u++) x[u] += __shfl_xor_sync(ALL_LANES, x[u], o);
}

// ---------------------------------------------------------------------------- forward

template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_forward(const TraversalArgs& args) {
    constexpr int K = S::VALUES;
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (warp >= args.num_tasks) return;
    const Task task = load_task(args.tasks, warp);
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        typename F::Params params;
        typename F::Dst dst;
        params.load(args, at);
        dst.load(args, at, task.row);
        float top = negative_infinity(), sum = 0.f, acc[K];
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] = 0.f;

        #pragma unroll 1
        for (int base = 0; base < task.count; base += WARP) {
            const int mine = load_indices(args.indices, task, base, at.lane);
            const int many = min(WARP, task.count - base);
            #pragma unroll 1
            for (int first = 0; first < many; first += S::EDGES * UNROLL) {
                typename F::Src src[UNROLL];
                float score[UNROLL];
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const int e = first + u * S::EDGES + at.edge;
                    src[u].load(args, at, __shfl_sync(ALL_LANES, mine, min(e, many - 1)));
                }
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) score[u] = F::score(params, src[u], dst);
                head_sums<S, UNROLL>(score);
                float next = top;
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    if (first + u * S::EDGES + at.edge >= many) score[u] = negative_infinity();
                    next = fmaxf(next, score[u]);
                }
                // A group that has seen only -inf subtracts 0, so that exp2 gives 0, not NaN.
                const float shift = next == negative_infinity() ? 0.f : next;
                const float scale = exp2_approx(top - shift);
                top = next;
                sum *= scale;
                #pragma unroll
                for (int i = 0; i < K; i++) acc[i] *= scale;
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float p = exp2_approx(score[u] - shift);
                    float v[K];
                    F::value(src[u], v);
                    sum += p;
                    // A slot past the end repeats a real edge, whose value may be infinite.
                    if (first + u * S::EDGES + at.edge < many) {
                        #pragma unroll
                        for (int i = 0; i < K; i++) acc[i] = fmaf(p, v[i], acc[i]);
                    }
                }
            }
        }
        #pragma unroll
        for (int o = S::GROUP; o < WARP; o <<= 1) {
            const float other = __shfl_xor_sync(ALL_LANES, top, o);
            const float next = fmaxf(top, other);
            const float shift = next == negative_infinity() ? 0.f : next;
            const float a = exp2_approx(top - shift), b = exp2_approx(other - shift);
            top = next;
            sum = sum * a + __shfl_xor_sync(ALL_LANES, sum, o) * b;
            #pragma unroll
            for (int i = 0; i < K; i++) acc[i] = acc[i] * a + __shfl_xor_sync(ALL_LANES, acc[i], o) * b;
        }
        if (at.edge != 0) continue;
        const i64 stat = (i64)(task.slot < 0 ? task.row : task.slot) * args.heads + at.head;
        if (task.slot < 0) {
            // An empty row is 0; a row whose logits are all -inf has sum 0 and becomes NaN.
            const float inverse = task.count == 0 ? 0.f : 1.f / sum;
            #pragma unroll
            for (int i = 0; i < K; i++) acc[i] *= inverse;
            store_row<S>(args.out, at, task.row, acc);
            if (at.within == 0) args.lse[stat] = task.count == 0 ? 0.f : top + log2_approx(sum);
        } else {
            store_partial<S>(args.partial, at, task.slot, acc);
            if (at.within == 0) args.partial_stats[stat] = make_float2(top, sum);
        }
    }
}

// ---------------------------------------------------------------------------- backward

// By destination: gradients of the destination rows and of the parameters, and row_stats for the
// pass by source. Warps stride over the tasks, keeping the parameter gradient in registers; each
// block writes one row of param_partials.
template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_backward_dst(const TraversalArgs& args) {
    constexpr int K = S::VALUES, WARPS = BLOCK / WARP;
    __shared__ float shared[WARPS][S::GROUP * K];
    const i64 first_task = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const i64 step = (i64)gridDim.x * WARPS;
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
            const Task task = load_task(args.tasks, index);
            const i64 stat = (i64)task.row * args.heads + at.head;
            typename F::Dst dst;
            typename F::DstGrad grad;
            float grad_out[K], delta = 0.f;
            dst.load(args, at, task.row);
            load_row<S>(args.grad_out, at, task.row, grad_out);
            {
                float out[K];
                load_row<S>(args.out, at, task.row, out);
                #pragma unroll
                for (int i = 0; i < K; i++) delta = fmaf(grad_out[i], out[i], delta);
                delta = head_sum<S>(delta);
            }
            const float lse = args.lse[stat];
            if (at.edge == 0 && at.within == 0) args.row_stats[stat] = make_float2(lse, delta);
            grad.clear();
            #pragma unroll 1
            for (int base = 0; base < task.count; base += WARP) {
                const int mine = load_indices(args.indices, task, base, at.lane);
                const int many = min(WARP, task.count - base);
                #pragma unroll 1
                for (int first = 0; first < many; first += S::EDGES * UNROLL) {
                    typename F::Src src[UNROLL];
                    float score[UNROLL], dot[UNROLL];
                    #pragma unroll
                    for (int u = 0; u < UNROLL; u++) {
                        const int e = first + u * S::EDGES + at.edge;
                        src[u].load(args, at, __shfl_sync(ALL_LANES, mine, min(e, many - 1)));
                    }
                    #pragma unroll
                    for (int u = 0; u < UNROLL; u++) {
                        float v[K];
                        score[u] = F::score(params, src[u], dst);
                        F::value(src[u], v);
                        dot[u] = 0.f;
                        #pragma unroll
                        for (int i = 0; i < K; i++) dot[u] = fmaf(grad_out[i], v[i], dot[u]);
                    }
                    head_sums<S, UNROLL>(score);
                    head_sums<S, UNROLL>(dot);
                    #pragma unroll
                    for (int u = 0; u < UNROLL; u++) {
                        const float ds = exp2_approx(score[u] - lse) * (dot[u] - delta);
                        if (first + u * S::EDGES + at.edge < many)
                            F::grad_dst_param(src[u], dst, ds, grad, param_grad);
                    }
                }
            }
            if (args.grad == nullptr) continue;
            float g[K];
            grad.reduce_edges();
            grad.finish(params, g);
            if (at.edge != 0) continue;
            if (task.slot < 0) store_row<S>(args.grad, at, task.row, g);
            else store_partial<S>(args.partial, at, task.slot, g);
        }
        if (args.param_partials == nullptr) continue;
        const int warp = threadIdx.x / WARP, position = at.lane % S::GROUP;
        #pragma unroll
        for (int i = 0; i < K; i++) {
            const float g = edge_sum<S>(param_grad.finish(params, i));
            if (at.edge == 0) shared[warp][position * K + i] = g;
        }
        __syncthreads();
        if (threadIdx.x < S::GROUP) {
            float total[K];
            #pragma unroll
            for (int i = 0; i < K; i++) {
                total[i] = 0.f;
                for (int w = 0; w < WARPS; w++) total[i] += shared[w][position * K + i];
            }
            store_partial<S>(args.param_partials, at, (int)blockIdx.x, total);
        }
        __syncthreads();
    }
}

// By source: gradient of the source rows. `indices` are destinations here; args.tasks split the
// rows of the transposed adjacency.
template <class F, class S, int UNROLL>
__device__ __forceinline__ void softmax_backward_src(const TraversalArgs& args) {
    constexpr int K = S::VALUES;
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (warp >= args.num_tasks) return;
    const Task task = load_task(args.tasks, warp);
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        typename F::Params params;
        typename F::Src src;
        typename F::SrcGrad grad;
        float value[K];
        params.load(args, at);
        src.load(args, at, task.row);
        F::value(src, value);
        grad.clear();
        #pragma unroll 1
        for (int base = 0; base < task.count; base += WARP) {
            const int mine = load_indices(args.indices, task, base, at.lane);
            const int many = min(WARP, task.count - base);
            #pragma unroll 1
            for (int first = 0; first < many; first += S::EDGES * UNROLL) {
                typename F::Dst dst[UNROLL];
                Raw<S> raw[UNROLL];
                float2 stats[UNROLL];
                float score[UNROLL], dot[UNROLL];
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const int e = first + u * S::EDGES + at.edge;
                    const int id = __shfl_sync(ALL_LANES, mine, min(e, many - 1));
                    dst[u].load(args, at, id);
                    raw[u].load(args.grad_out, at, id);
                    stats[u] = __ldg(args.row_stats + (i64)id * args.heads + at.head);
                }
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    float grad_out[K];
                    raw[u].unpack(grad_out);
                    score[u] = F::score(params, src, dst[u]);
                    dot[u] = 0.f;
                    #pragma unroll
                    for (int i = 0; i < K; i++) dot[u] = fmaf(grad_out[i], value[i], dot[u]);
                }
                head_sums<S, UNROLL>(score);
                head_sums<S, UNROLL>(dot);
                #pragma unroll
                for (int u = 0; u < UNROLL; u++) {
                    const float alpha = exp2_approx(score[u] - stats[u].x);
                    const float ds = alpha * (dot[u] - stats[u].y);
                    float grad_out[K];
                    raw[u].unpack(grad_out);
                    if (first + u * S::EDGES + at.edge < many)
                        F::grad_src(src, dst[u], grad_out, alpha, ds, grad);
                }
            }
        }
        float g[K];
        grad.reduce_edges();
        grad.finish(params, g);
        if (at.edge != 0) continue;
        if (task.slot < 0) store_row<S>(args.grad, at, task.row, g);
        else store_partial<S>(args.partial, at, task.slot, g);
    }
}

// (lse, <grad_out, out>) of every row, when the pass by destination is not needed. A warp owns
// one row and one block of heads; tasks are not read (num_tasks: rows).
template <class S>
__device__ __forceinline__ void softmax_row_stats(const TraversalArgs& args) {
    constexpr int K = S::VALUES;
    const i64 row = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (row >= args.num_tasks) return;
    const int head_blocks = (int)(args.heads / S::HEADS);
    #pragma unroll 1
    for (int block = blockIdx.y; block < head_blocks; block += gridDim.y) {
        const Lane<S> at(args.heads, args.dim, block);
        float a[K], b[K], delta = 0.f;
        load_row<S>(args.grad_out, at, (int)row, a);
        load_row<S>(args.out, at, (int)row, b);
        #pragma unroll
        for (int i = 0; i < K; i++) delta = fmaf(a[i], b[i], delta);
        delta = head_sum<S>(delta);
        const i64 stat = row * args.heads + at.head;
        if (at.edge == 0 && at.within == 0) args.row_stats[stat] = make_float2(args.lse[stat], delta);
    }
}

}  // namespace gnnb

// GATv2 (Brody et al., 2022): logit = sum_d att_d * leaky_relu(x_src_d + x_dst_d), value = x_src.
//
// leaky_relu(z) = lin * z + mag * |z| with lin = (1 + slope) / 2 and mag = (1 - slope) / 2: no
// branch, for any slope, and the two sums are combined once a lane. |z| is capped, so that z = -inf
// gives -inf as the exact form does, not inf - inf. Scores are in base 2 (log2(e) is in lin, mag).
#pragma once
#include "common.cuh"

namespace gnnb {

template <class S> struct GATv2 {
    static constexpr int K = S::VALUES;

    // |z| beyond this is an infinity or nonsense; products with att must stay finite.
    static constexpr float CAP = 1e30f;

    // What is fixed while a chunk is traversed: the attention vector in a lane's columns.
    struct Params {
        float att[K];
        float slope, lin, mag;
        template <class Args>
        __device__ __forceinline__ void load(const Args& args, const Lane<S>& at) {
            slope = args.scalar[0];
            lin = LOG2E * 0.5f * (1.f + slope);
            mag = LOG2E * 0.5f * (1.f - slope);
            load_row<S>(args.param[0], at, 0, att);
        }
    };

    struct Src {
        Raw<S> x;
        template <class Args>
        __device__ __forceinline__ void load(const Args& args, const Lane<S>& at, int row) {
            x.load(args.src[0], at, row);
        }
    };
    struct Dst {
        Raw<S> x;
        template <class Args>
        __device__ __forceinline__ void load(const Args& args, const Lane<S>& at, int row) {
            x.load(args.dst[0], at, row);
        }
    };

    // This lane's share of the base-2 logit.
    static __device__ __forceinline__ float score(const Params& p, const Src& src, const Dst& dst) {
        float x[K], r[K], plain = 0.f, absolute = 0.f;
        src.x.unpack(x);
        dst.x.unpack(r);
        #pragma unroll
        for (int i = 0; i < K; i++) {
            const float z = x[i] + r[i];
            plain = fmaf(p.att[i], z, plain);
            absolute = fmaf(p.att[i], fminf(fabsf(z), CAP), absolute);
        }
        return fmaf(p.lin, plain, p.mag * absolute);
    }

    static __device__ __forceinline__ void value(const Src& src, float (&v)[K]) { src.x.unpack(v); }

    // d logit / d x_dst = att * leaky', accumulated as a sum over z > 0 and a plain sum.
    struct DstGrad {
        float positive[K], total;
        __device__ __forceinline__ void clear() {
            total = 0.f;
            #pragma unroll
            for (int i = 0; i < K; i++) positive[i] = 0.f;
        }
        __device__ __forceinline__ void reduce_edges() {
            total = edge_sum<S>(total);
            #pragma unroll
            for (int i = 0; i < K; i++) positive[i] = edge_sum<S>(positive[i]);
        }
        __device__ __forceinline__ void finish(const Params& p, float (&g)[K]) const {
            #pragma unroll
            for (int i = 0; i < K; i++)
                g[i] = p.att[i] * fmaf(1.f - p.slope, positive[i], p.slope * total);
        }
    };
    // d logit / d att = leaky_relu(z), accumulated as ds * z over all edges and over z > 0.
    struct ParamGrad {
        float all[K], positive[K];
        __device__ __forceinline__ void clear() {
            #pragma unroll
            for (int i = 0; i < K; i++) all[i] = positive[i] = 0.f;
        }
        __device__ __forceinline__ float finish(const Params& p, int i) const {
            return fmaf(1.f - p.slope, positive[i], p.slope * all[i]);
        }
    };
    // The source is the value as well: its gradient has a second term, alpha * grad_out.
    struct SrcGrad {
        DstGrad score;
        float value[K];
        __device__ __forceinline__ void clear() {
            score.clear();
            #pragma unroll
            for (int i = 0; i < K; i++) value[i] = 0.f;
        }
        __device__ __forceinline__ void reduce_edges() {
            score.reduce_edges();
            #pragma unroll
            for (int i = 0; i < K; i++) value[i] = edge_sum<S>(value[i]);
        }
        __device__ __forceinline__ void finish(const Params& p, float (&g)[K]) const {
            score.finish(p, g);
            #pragma unroll
            for (int i = 0; i < K; i++) g[i] += value[i];
        }
    };

    // ds: gradient of the (natural) logit of this edge.
    static __device__ __forceinline__ void grad_dst_param(
        const Src& src, const Dst& dst, float ds, DstGrad& grad, ParamGrad& param) {
        float x[K], r[K];
        src.x.unpack(x);
        dst.x.unpack(r);
        grad.total += ds;
        #pragma unroll
        for (int i = 0; i < K; i++) {
            const float z = x[i] + r[i];
            param.all[i] = fmaf(ds, z, param.all[i]);
            if (z > 0.f) {
                grad.positive[i] += ds;
                param.positive[i] = fmaf(ds, z, param.positive[i]);
            }
        }
    }
    static __device__ __forceinline__ void grad_src(
        const Src& src, const Dst& dst, const float (&grad_out)[K], float alpha, float ds,
        SrcGrad& grad) {
        float x[K], r[K];
        src.x.unpack(x);
        dst.x.unpack(r);
        grad.score.total += ds;
        #pragma unroll
        for (int i = 0; i < K; i++) {
            grad.value[i] = fmaf(alpha, grad_out[i], grad.value[i]);
            if (x[i] + r[i] > 0.f) grad.score.positive[i] += ds;
        }
    }
};

}  // namespace gnnb

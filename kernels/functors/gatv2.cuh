// GATv2 (Brody et al., 2022): logit = sum_d att_d * leaky_relu(x_src_d + x_dst_d), value = x_src.
//
// leaky_relu(z) = lin * z + mag * |z| with lin = (1 + slope) / 2 and mag = (1 - slope) / 2: no
// branch, for any slope, and the two sums are combined once a lane. At z = -inf this is NaN where
// the exact form is -inf: the forward pass then takes `score_exact`. Gradients need no such care:
// an infinite input makes its rows' gradients NaN in any form. Scores are in base 2.
#pragma once
#include "common.cuh"

namespace gnnb {

template <class S> struct GATv2 {
    static constexpr int K = S::VALUES;

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
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            x.load(args.src[0], at, row, live);
        }
    };
    struct Dst {
        Raw<S> x;
        template <class Args>
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            x.load(args.dst[0], at, row, live);
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
            absolute = fmaf(p.att[i], fabsf(z), absolute);
        }
        return fmaf(p.lin, plain, p.mag * absolute);
    }
    static __device__ __forceinline__ float score_exact(
        const Params& p, const Src& src, const Dst& dst) {
        float x[K], r[K], s = 0.f;
        src.x.unpack(x);
        dst.x.unpack(r);
        #pragma unroll
        for (int i = 0; i < K; i++) {
            const float z = x[i] + r[i];
            s = fmaf(p.att[i], z > 0.f ? z : p.slope * z, s);
        }
        return s * LOG2E;
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
        __device__ __forceinline__ void finish(const Params& p, float (&g)[K]) const {
            #pragma unroll
            for (int i = 0; i < K; i++)
                g[i] = p.att[i] * fmaf(1.f - p.slope, positive[i], p.slope * total);
        }
    };
    // d logit / d att = leaky_relu(z), accumulated as ds * z and ds * |z|.
    struct ParamGrad {
        float plain[K], absolute[K];
        __device__ __forceinline__ void clear() {
            #pragma unroll
            for (int i = 0; i < K; i++) plain[i] = absolute[i] = 0.f;
        }
        __device__ __forceinline__ float finish(const Params& p, int i) const {
            return 0.5f * fmaf(1.f + p.slope, plain[i], (1.f - p.slope) * absolute[i]);
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
            param.plain[i] = fmaf(ds, z, param.plain[i]);
            param.absolute[i] = fmaf(ds, fabsf(z), param.absolute[i]);
            if (z > 0.f) grad.positive[i] += ds;
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

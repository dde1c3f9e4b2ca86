// SuperGAT (Kim and Oh, 2021): logit = leaky_relu(scale * p + (el_src + er_dst) * sigmoid(p)) with
// p = <x_src, x_dst>; value = x_src.
//
// The sum over lanes and the term have slopes of their own (GATED). Tables: src = (x [N, H, D],
// el [N, H]), dst = (x [N, H, D], er [N, H]). By destination one row an edge, x; by source two, the
// destination's x and the output's gradient.
#pragma once
#include "dots.cuh"
#include "exponential.cuh"
#include "traversal.cuh"

namespace gnnb {

template <class S, class O = Plain> struct SuperGAT {
    using Options = O;
    using Edge = EdgeRow<S, false>;
    using T = typename S::T;
    static constexpr int K = S::VALUES;
    static constexpr bool DOTS = true, SCALARS = true, SECOND = false, PARAMS = false, EXACT = false;
    static_assert(!O::LOGIT && !O::EdgeFeatures::ANY, "edges bring nothing");

    struct Params {
        float slope, scale;
        template <class Args>
        __device__ __forceinline__ void load(const Args& args, const Lane<S>&) {
            slope = args.scalar[0];
            scale = args.scalar[1];
        }
    };
    struct ParamGrad {
        __device__ __forceinline__ void clear() {}
    };

    struct Src {
        Raw<S> x;
        template <bool ONCE = false, class Args>
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            x.template load<ONCE>(args.src[0], at, row, live);
        }
    };
    struct Dst {
        Raw<S> x;
        template <bool ONCE = false, class Args>
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            x.template load<ONCE>(args.dst[0], at, row, live);
        }
    };
    // What is fixed of a destination, and of a source, while its edges are traversed.
    struct Row {
        Fixed<S> x;
        float er;
        template <class Args>
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            Dst dst;
            dst.template load<true>(args, at, row, live);
            x.set(dst.x, at.lane);
            er = scalar_at<T>(args.dst[1], (unsigned)row, args.heads, at.head);
        }
        __device__ __forceinline__ float scalar() const { return er; }
    };
    struct Source {
        Fixed<S> value;
        float el;
        template <class Args>
        __device__ __forceinline__ void set(
            const Args& args, const Lane<S>& at, const Params&, const Src& src, int row) {
            value.set(src.x, at.lane);
            el = scalar_at<T>(args.src[1], (unsigned)row, args.heads, at.head);
        }
        __device__ __forceinline__ float score(
            const Params&, const Dst& dst, const Edge&, const Lane<S>& at) const {
            return value.dot(dst.x, at.lane);
        }
        __device__ __forceinline__ float scalar() const { return el; }
    };

    static __device__ __forceinline__ float source_score(const Params&, const Src&, const Lane<S>&) {
        return 0.f;
    }
    static __device__ __forceinline__ float score(
        const Params&, const Src& src, const Row& row, const Edge&, float, const Lane<S>& at) {
        return row.x.dot(src.x, at.lane);
    }

    static __device__ __forceinline__ float sigmoid(float p) { return 1.f / (1.f + exponential(-p)); }
    // What the leaky-relu is taken of; an infinite product that is not scaled is not NaN.
    static __device__ __forceinline__ float gated(const Params& p, float sum, float term, float gate) {
        return p.scale != 0.f ? fmaf(term, gate, p.scale * sum) : term * gate;
    }
    static __device__ __forceinline__ float logit(const Params& p, float sum, float term) {
        const float z = gated(p, sum, term, sigmoid(sum));
        return base2_term(z > 0.f ? z : p.slope * z);
    }
    // Derivatives of the natural logit.
    static __device__ __forceinline__ float slope_of(const Params& p, float sum, float term) {
        const float gate = sigmoid(sum), outer = gated(p, sum, term, gate) > 0.f ? 1.f : p.slope;
        return outer * fmaf(term, gate * (1.f - gate), p.scale);
    }
    static __device__ __forceinline__ float term_slope(const Params& p, float sum, float term) {
        const float gate = sigmoid(sum), outer = gated(p, sum, term, gate) > 0.f ? 1.f : p.slope;
        return outer * gate;
    }
    static __device__ __forceinline__ const Raw<S>& value(const Src& src) { return src.x; }

    struct DstGrad {
        float x[K], total;   // the latter of er; of the edges that this lane holds the logits of
        __device__ __forceinline__ void clear() {
            total = 0.f;
            #pragma unroll
            for (int i = 0; i < K; i++) x[i] = 0.f;
        }
        template <class Args>
        __device__ __forceinline__ void finish(
            const Args&, const Lane<S>&, const Params&, float (&g)[K]) const {
            #pragma unroll
            for (int i = 0; i < K; i++) g[i] = x[i];
        }
    };
    using SrcGrad = DstGrad;
    // ds: gradient of the sum over lanes of this edge.
    static __device__ __forceinline__ void grad_dst_param(
        const Src& src, const Row&, const Edge&, float ds, DstGrad& grad, ParamGrad&) {
        float x[K];
        src.x.unpack(x);
        #pragma unroll
        for (int i = 0; i < K; i++) grad.x[i] = fmaf(ds, x[i], grad.x[i]);
    }
    static __device__ __forceinline__ void grad_src(
        const Src&, const Dst& dst, const Edge&, const float (&grad_out)[K], float weight, float ds,
        SrcGrad& grad) {
        float x[K];
        dst.x.unpack(x);
        #pragma unroll
        for (int i = 0; i < K; i++) {
            grad.x[i] = fmaf(ds, x[i], grad.x[i]);
            grad.x[i] = fmaf(weight, grad_out[i], grad.x[i]);
        }
    }
};

}  // namespace gnnb

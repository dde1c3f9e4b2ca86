// GAT (Velickovic et al., 2018): logit = leaky_relu(el_src + er_dst + term), value = x_src.
//
// A logit is one number for each edge and head, so that only the lanes that hold it compute it; the term
// of an edge is Options::LOGIT. Tables: src = (x [N, H, D], el [N, H]), dst = (er [N, H]).
// One row an edge in every pass: x by destination, the output's gradient by source.
#pragma once
#include "dots.cuh"
#include "traversal.cuh"

namespace gnnb {

template <class S, class O = Plain> struct GAT {
    using Options = O;
    using Edge = EdgeRow<S, false>;
    using T = typename S::T;
    static constexpr int K = S::VALUES;
    static constexpr bool DOTS = false, SCALARS = true, SECOND = false, PARAMS = false, EXACT = false;

    struct Params {
        float slope;
        template <class Args>
        __device__ __forceinline__ void load(const Args& args, const Lane<S>&) {
            slope = args.scalar[0];
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
        template <bool ONCE = false, class Args>
        __device__ __forceinline__ void load(const Args&, const Lane<S>&, int, bool) {}
    };
    // What is fixed of a destination, and of a source, while its edges are traversed.
    struct Row {
        float er;
        template <class Args>
        __device__ __forceinline__ void load(const Args& args, const Lane<S>& at, int row, bool) {
            er = scalar_at<T>(args.dst[0], (unsigned)row, args.heads, at.head);
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
            const Params&, const Dst&, const Edge&, const Lane<S>&) const { return 0.f; }
        __device__ __forceinline__ float scalar() const { return el; }
    };

    static __device__ __forceinline__ float source_score(const Params&, const Src&, const Lane<S>&) {
        return 0.f;
    }
    static __device__ __forceinline__ float score(
        const Params&, const Src&, const Row&, const Edge&, float, const Lane<S>&) { return 0.f; }
    // The base-2 logit of el + er + term, and its derivative in natural units.
    static __device__ __forceinline__ float logit(const Params& p, float, float z) {
        return base2_term(z > 0.f ? z : p.slope * z);
    }
    static __device__ __forceinline__ float slope_of(const Params& p, float z) {
        return z > 0.f ? 1.f : p.slope;
    }
    static __device__ __forceinline__ const Raw<S>& value(const Src& src) { return src.x; }

    struct DstGrad {
        float total;   // of er; of the edges that this lane holds the logits of
        __device__ __forceinline__ void clear() { total = 0.f; }
    };
    struct SrcGrad {
        float value[K], total;
        __device__ __forceinline__ void clear() {
            total = 0.f;
            #pragma unroll
            for (int i = 0; i < K; i++) value[i] = 0.f;
        }
        template <class Args>
        __device__ __forceinline__ void finish(
            const Args&, const Lane<S>&, const Params&, float (&g)[K]) const {
            #pragma unroll
            for (int i = 0; i < K; i++) g[i] = value[i];
        }
    };
    static __device__ __forceinline__ void grad_dst_param(
        const Src&, const Row&, const Edge&, float, DstGrad&, ParamGrad&) {}
    static __device__ __forceinline__ void grad_src(
        const Src&, const Dst&, const Edge&, const float (&grad_out)[K], float weight, float,
        SrcGrad& grad) {
        #pragma unroll
        for (int i = 0; i < K; i++) grad.value[i] = fmaf(weight, grad_out[i], grad.value[i]);
    }
};

}  // namespace gnnb

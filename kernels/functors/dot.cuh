// Dot product (Vaswani et al., 2017): logit = scale * <q_dst, k_src> + term, value = v_src.
//
// The term of an edge and head is Options::LOGIT; the query's product with edge features joins the first
// one before it is scaled (features.cuh). Tables: src = (k, v), dst = (q). Two rows an edge in every
// pass: k and v by destination, q and the output's gradient by source.
#pragma once
#include "dots.cuh"
#include "traversal.cuh"

namespace gnnb {

template <class S, class O = Plain> struct Dot {
    using Options = O;
    using Edge = EdgeRow<S, false>;
    static constexpr int K = S::VALUES;
    static constexpr bool DOTS = true, SCALARS = false, SECOND = true, PARAMS = false, EXACT = false;

    struct Params {
        float scale;
        template <class Args>
        __device__ __forceinline__ void load(const Args& args, const Lane<S>&) {
            scale = args.scalar[0];
        }
    };
    struct ParamGrad {
        __device__ __forceinline__ void clear() {}
    };

    struct Src {
        Raw<S> k, v;
        template <bool ONCE = false, class Args>
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            k.template load<ONCE>(args.src[0], at, row, live);
            v.template load<ONCE>(args.src[1], at, row, live);
        }
    };
    struct Dst {
        Raw<S> q;
        template <bool ONCE = false, class Args>
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            q.template load<ONCE>(args.dst[0], at, row, live);
        }
    };
    // What is fixed of a destination, and of a source, while its edges are traversed.
    struct Row {
        Fixed<S> q;
        template <class Args>
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            Dst dst;
            dst.template load<true>(args, at, row, live);
            q.set(dst.q, at.lane);
        }
        __device__ __forceinline__ float scalar() const { return 0.f; }
    };
    struct Source {
        Fixed<S> key, value;
        template <class Args>
        __device__ __forceinline__ void set(
            const Args&, const Lane<S>& at, const Params&, const Src& src, int) {
            key.set(src.k, at.lane);
            value.set(src.v, at.lane);
        }
        __device__ __forceinline__ float score(
            const Params&, const Dst& dst, const Edge&, const Lane<S>& at) const {
            return key.dot(dst.q, at.lane);
        }
        __device__ __forceinline__ float scalar() const { return 0.f; }
    };

    static __device__ __forceinline__ float source_score(const Params&, const Src&, const Lane<S>&) {
        return 0.f;
    }
    static __device__ __forceinline__ float score(
        const Params&, const Src& src, const Row& row, const Edge&, float, const Lane<S>& at) {
        return row.q.dot(src.k, at.lane);
    }
    static __device__ __forceinline__ float logit(const Params& p, float score, float term) {
        score *= LOG2E * p.scale;
        if constexpr (O::LOGIT) score += base2_term(term);
        return score;
    }
    static __device__ __forceinline__ float slope_of(const Params&, float) { return 1.f; }
    static __device__ __forceinline__ const Raw<S>& value(const Src& src) { return src.v; }

    struct DstGrad {
        float query[K];
        __device__ __forceinline__ void clear() {
            #pragma unroll
            for (int i = 0; i < K; i++) query[i] = 0.f;
        }
        template <class Args>
        __device__ __forceinline__ void finish(
            const Args&, const Lane<S>&, const Params& p, float (&g)[K]) const {
            #pragma unroll
            for (int i = 0; i < K; i++) g[i] = p.scale * query[i];
        }
    };
    struct SrcGrad {
        float key[K], second[K];   // the second table is that of the values
        __device__ __forceinline__ void clear() {
            #pragma unroll
            for (int i = 0; i < K; i++) key[i] = second[i] = 0.f;
        }
        template <class Args>
        __device__ __forceinline__ void finish(
            const Args&, const Lane<S>&, const Params& p, float (&g)[K]) const {
            #pragma unroll
            for (int i = 0; i < K; i++) g[i] = p.scale * key[i];
        }
    };
    // ds: gradient of the (natural) logit of this edge.
    static __device__ __forceinline__ void grad_dst_param(
        const Src& src, const Row&, const Edge&, float ds, DstGrad& grad, ParamGrad&) {
        float k[K];
        src.k.unpack(k);
        #pragma unroll
        for (int i = 0; i < K; i++) grad.query[i] = fmaf(ds, k[i], grad.query[i]);
    }
    static __device__ __forceinline__ void grad_src(
        const Src&, const Dst& dst, const Edge&, const float (&grad_out)[K], float weight, float ds,
        SrcGrad& grad) {
        float q[K];
        dst.q.unpack(q);
        #pragma unroll
        for (int i = 0; i < K; i++) {
            grad.key[i] = fmaf(ds, q[i], grad.key[i]);
            grad.second[i] = fmaf(weight, grad_out[i], grad.second[i]);
        }
    }
};

}  // namespace gnnb

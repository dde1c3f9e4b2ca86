// GATv2 (Brody et al., 2022): logit = sum_d att_d * leaky_relu(x_src_d + x_dst_d), value = x_src.
//
// With z = x_src + x_dst, lin = (1 + slope) / 2 and mag = (1 - slope) / 2,
//     leaky_relu(z) = lin * z + mag * |z|        for any slope, without a branch.
// The part lin * <att, x_dst> is the same for all edges of a row, so the softmax does not see it
// and it is left out of the score: what remains is lin * <att, x_src> + mag * <att, |z|>. The first
// term belongs to the source alone, and so does its gradient towards att.
// At z = -inf (or where att * z overflows) this form is NaN while the exact one is -inf: the forward
// pass then takes `score_exact`, and the backward passes know such an edge by its row, which is
// finite. Scores are in base 2: log2(e) is in lin and mag. Of 16-bit rows, z is rounded to 16 bits,
// as it is by the hosts' layers. Edges may have a row of their own in z (Options::ROWS), rounded likewise;
// the first term is then that of x_src + edge.
#pragma once
#include "dots.cuh"
#include "traversal.cuh"

namespace gnnb {

template <class S, class O = Plain> struct GATv2 {
    using Options = O;
    using Edge = EdgeRow<S, O::ROWS>;
    static constexpr int K = S::VALUES;
    static constexpr bool DOTS = true;       // scores are sums over the lanes of a head
    static constexpr bool SCALARS = false;   // no [N, H] tables
    static constexpr bool SECOND = false;    // one table by source
    static constexpr bool PARAMS = true;
    static constexpr bool EXACT = true;      // score may be NaN where score_exact is not

    // What is fixed while a chunk is traversed: the attention vector in a lane's columns.
    struct Params {
        FixedParam<S> att;
        float slope, lin, mag;
        template <class Args>
        __device__ __forceinline__ void load(const Args& args, const Lane<S>& at) {
            slope = args.scalar[0];
            lin = LOG2E * 0.5f * (1.f + slope);
            mag = LOG2E * 0.5f * (1.f - slope);
            Raw<S> row;
            row.load(args.param[0], at, 0);
            att.set(row, at.lane);
        }
        // As float32: read again where it is not held so.
        template <class Args>
        __device__ __forceinline__ void attention(
            const Args& args, const Lane<S>& at, float (&values)[K]) const {
            if constexpr (PACKED<S>) load_row<S>(args.param[0], at, 0, values);
            else att.row.unpack(values);
        }
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

    // What is fixed of a destination while its edges are traversed.
    struct Row : Dst {
        template <class Args>
        __device__ __forceinline__ void load(
            const Args& args, const Lane<S>& at, int row, bool live) {
            Dst::template load<true>(args, at, row, live);
        }
        __device__ __forceinline__ float scalar() const { return 0.f; }
    };

    // The same of a source.
    struct Source {
        Src src;
        float share;
        Fixed<S> value;
        template <class Args>
        __device__ __forceinline__ void set(
            const Args&, const Lane<S>& at, const Params& p, const Src& of, int) {
            src = of;
            share = source_score(p, of, at);
            value.set(of.x, at.lane);
        }
        __device__ __forceinline__ float score(
            const Params& p, const Dst& dst, const Edge& edge, const Lane<S>& at) const {
            return GATv2::score(p, src, dst, edge, share, at);
        }
        __device__ __forceinline__ float scalar() const { return 0.f; }
    };

    // z, as 16 bits that are summed packed, and as float32.
    static __device__ __forceinline__ Raw<S> packed_hidden(const Src& src, const Dst& dst, const Edge& edge) {
        const Raw<S> z = packed_sum(src.x, dst.x);
        if constexpr (O::ROWS) return packed_sum(z, edge.x);
        else return z;
    }
    static __device__ __forceinline__ void hidden(
        const Src& src, const Dst& dst, const Edge& edge, float (&z)[K]) {
        if constexpr (!O::ROWS) {
            unpacked_sum(src.x, dst.x, z);
        } else if constexpr (PACKED<S>) {
            packed_hidden(src, dst, edge).unpack(z);
        } else {
            float e[K];
            unpacked_sum(src.x, dst.x, z);
            edge.x.unpack(e);
            #pragma unroll
            for (int i = 0; i < K; i++) z[i] += e[i];
        }
    }

    // This lane's share of lin * <att, x_src>.
    static __device__ __forceinline__ float source_score(const Params& p, const Src& src, const Lane<S>& at) {
        return p.lin * p.att.dot(src.x, at.lane);
    }
    // This lane's share of the base-2 logit, given that of source_score.
    static __device__ __forceinline__ float score(
        const Params& p, const Src& src, const Dst& dst, const Edge& edge, float source,
        const Lane<S>& at) {
        float absolute;
        if constexpr (PACKED<S>) {
            absolute = p.att.dot(packed_abs(packed_hidden(src, dst, edge)), at.lane);
        } else {
            float att[K], z[K];
            p.att.row.unpack(att);
            hidden(src, dst, edge, z);
            absolute = 0.f;
            #pragma unroll
            for (int i = 0; i < K; i++) absolute = fmaf(att[i], fabsf(z[i]), absolute);
        }
        if constexpr (O::ROWS) source = fmaf(p.lin, p.att.dot(edge.x, at.lane), source);
        return fmaf(p.mag, absolute, source);
    }
    template <class Args>
    static __device__ __forceinline__ float score_exact(
        const Args& args, const Lane<S>& at, const Params& p, const Src& src, const Dst& dst,
        const Edge& edge) {
        float att[K], z[K], r[K], whole = 0.f, row = 0.f;
        p.attention(args, at, att);
        hidden(src, dst, edge, z);
        dst.x.unpack(r);
        #pragma unroll
        for (int i = 0; i < K; i++) {
            whole = fmaf(att[i], z[i] > 0.f ? z[i] : p.slope * z[i], whole);
            row = fmaf(att[i], r[i], row);
        }
        return LOG2E * whole - p.lin * row;
    }
    // The base-2 logit from the sum of scores, and its derivative in natural units.
    static __device__ __forceinline__ float logit(const Params&, float score, float) { return score; }
    static __device__ __forceinline__ float slope_of(const Params&, float) { return 1.f; }

    static __device__ __forceinline__ const Raw<S>& value(const Src& src) { return src.x; }

    // d logit / d x_dst = att * leaky', accumulated as a sum over z > 0 and a plain sum.
    struct DstGrad {
        float positive[K], total;
        __device__ __forceinline__ void clear() {
            total = 0.f;
            #pragma unroll
            for (int i = 0; i < K; i++) positive[i] = 0.f;
        }
        template <class Args>
        __device__ __forceinline__ void finish(
            const Args& args, const Lane<S>& at, const Params& p, float (&g)[K]) const {
            float att[K];
            p.attention(args, at, att);
            #pragma unroll
            for (int i = 0; i < K; i++)
                g[i] = att[i] * fmaf(1.f - p.slope, positive[i], p.slope * total);
        }
    };
    // d score / d att = mag * |z|, accumulated over edges; lin * x_src is added by source.
    struct ParamGrad {
        float sum[K];
        float edges[O::ROWS ? K : 1];   // the same term of edges' rows, by destination
        __device__ __forceinline__ void clear() {
            #pragma unroll
            for (int i = 0; i < K; i++) sum[i] = 0.f;
            #pragma unroll
            for (int i = 0; i < (O::ROWS ? K : 1); i++) edges[i] = 0.f;
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
        template <class Args>
        __device__ __forceinline__ void finish(
            const Args& args, const Lane<S>& at, const Params& p, float (&g)[K]) const {
            score.finish(args, at, p, g);
            #pragma unroll
            for (int i = 0; i < K; i++) g[i] += value[i];
        }
    };

    // ds: gradient of the (natural) logit of this edge.
    static __device__ __forceinline__ void grad_dst_param(
        const Src& src, const Dst& dst, const Edge& edge, float ds, DstGrad& grad, ParamGrad& param) {
        float z[K];
        hidden(src, dst, edge, z);
        grad.total += ds;
        #pragma unroll
        for (int i = 0; i < K; i++) {
            param.sum[i] = fmaf(ds, fabsf(z[i]), param.sum[i]);
            if (z[i] > 0.f) grad.positive[i] += ds;
        }
        if constexpr (O::ROWS) {
            float e[K];
            edge.x.unpack(e);
            #pragma unroll
            for (int i = 0; i < K; i++) param.edges[i] = fmaf(ds, e[i], param.edges[i]);
        }
    }
    template <class Args>
    static __device__ __forceinline__ void store_edge_grad(
        const Args& args, const Lane<S>& at, const Params& p, const Src& src, const Dst& dst,
        const Edge& edge, float ds, unsigned number) {
        float att[K], z[K];
        p.attention(args, at, att);
        hidden(src, dst, edge, z);
        #pragma unroll
        for (int i = 0; i < K; i++) z[i] = ds * att[i] * (z[i] > 0.f ? 1.f : p.slope);
        store_row<S>(args.edge.grad_rows, at, (int)number, z);
    }
    static __device__ __forceinline__ void grad_src(
        const Src& src, const Dst& dst, const Edge& edge, const float (&grad_out)[K], float alpha,
        float ds, SrcGrad& grad) {
        float z[K];
        hidden(src, dst, edge, z);
        grad.score.total += ds;
        #pragma unroll
        for (int i = 0; i < K; i++) {
            grad.value[i] = fmaf(alpha, grad_out[i], grad.value[i]);
            if (z[i] > 0.f) grad.score.positive[i] += ds;
        }
    }

    // Parameter gradients in natural units: by destination the sums over edges, by source what the
    // total gradient of a source's logits gives.
    static __device__ __forceinline__ void finish_param_dst(const Params& p, ParamGrad& param) {
        #pragma unroll
        for (int i = 0; i < K; i++) {
            param.sum[i] *= 0.5f * (1.f - p.slope);
            if constexpr (O::ROWS) param.sum[i] = fmaf(0.5f * (1.f + p.slope), param.edges[i], param.sum[i]);
        }
    }
    static __device__ __forceinline__ void add_param_src(
        const Src& src, const SrcGrad& grad, ParamGrad& param) {
        float x[K];
        src.x.unpack(x);
        #pragma unroll
        for (int i = 0; i < K; i++) param.sum[i] = fmaf(grad.score.total, x[i], param.sum[i]);
    }
    static __device__ __forceinline__ void finish_param_src(const Params& p, ParamGrad& param) {
        #pragma unroll
        for (int i = 0; i < K; i++) param.sum[i] *= 0.5f * (1.f + p.slope);
    }
};

}  // namespace gnnb

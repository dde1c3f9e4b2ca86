// Edge features f_e of attention: <query_i, f_e> in the logit, and sum_e w_e f_e as a second result.
// Their rows lie over the lanes of a head as the operands' do, in a layout of their own.
// Bytes an edge: F values by destination in each pass, none by source, which reads the weight and the
// logit's gradient that the pass by destination leaves (8 H bytes written, 8 H read).
#pragma once
#include "dots.cuh"
#include "traversal.cuh"

namespace gnnb {

// Where a lane stands in rows [N, H, F], and in rows of edges, which the heads may share.
template <class O, bool ANY = O::EdgeFeatures::ANY> struct FeatureLanes {
    __device__ __forceinline__ FeatureLanes(const TraversalArgs&, int) {}
};
template <class O> struct FeatureLanes<O, true> {
    using L = typename O::EdgeFeatures::Fragment;
    Lane<L> rows, edges;
    __device__ __forceinline__ FeatureLanes(const TraversalArgs& args, int head_block)
        : rows(args.heads, args.edge.features, head_block), edges(rows) {
        if constexpr (O::EdgeFeatures::SHARED) {
            edges.column = edges.within * L::WIDTH;
            edges.stride = (unsigned)args.edge.features;
            edges.row_bytes = edges.stride * (unsigned)sizeof(typename L::T);
        }
    }
};

// A lane's part of an edge's features.
template <class O, bool ANY = O::EdgeFeatures::ANY> struct FeatureRow {
    template <class B>
    __device__ __forceinline__ void load(const TraversalArgs&, const FeatureLanes<O>&, const B&, int, bool) {}
};
template <class O> struct FeatureRow<O, true> {
    Raw<typename O::EdgeFeatures::Fragment> f;
    template <class B>
    __device__ __forceinline__ void load(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, const B& batch, int u, bool live) {
        f.template load<!O::EdgeFeatures::SHARED>(args.edge.rows, lanes.edges, (int)batch.edge(u), live);
    }
};

// Forward: what a destination row multiplies features with, and their sum.
template <class O, bool ANY = O::EdgeFeatures::ANY> struct FeatureSum {
    __device__ __forceinline__ void load(const TraversalArgs&, const FeatureLanes<O>&, int, bool) {}
    __device__ __forceinline__ void clear() {}
    __device__ __forceinline__ float score(float x, const FeatureRow<O>&, int) const { return x; }
    __device__ __forceinline__ void add(float, const FeatureRow<O>&) {}
    __device__ __forceinline__ void scale(float) {}
    __device__ __forceinline__ void store(const TraversalArgs&, const FeatureLanes<O>&, const Task&) const {}
};
template <class O> struct FeatureSum<O, true> {
    using E = typename O::EdgeFeatures;
    using L = typename E::Fragment;
    static constexpr int K = L::VALUES;
    Fixed<L> query;
    float acc[K];

    __device__ __forceinline__ void load(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, int row, bool exists) {
        if constexpr (E::QUERY) {
            Raw<L> raw;
            raw.template load<true>(args.edge.query, lanes.rows, row, exists);
            query.set(raw, lanes.rows.lane);
        }
    }
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] = 0.f;
    }
    // x and this lane's share of <query, features>.
    __device__ __forceinline__ float score(float x, const FeatureRow<O>& row, int lane) const {
        if constexpr (E::QUERY) x += query.dot(row.f, lane);
        return x;
    }
    __device__ __forceinline__ void add(float weight, const FeatureRow<O>& row) {
        if constexpr (!E::AGGREGATE) return;
        float f[K];
        row.f.unpack(f);
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] = fmaf(weight, f[i], acc[i]);
    }
    __device__ __forceinline__ void scale(float factor) {
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] *= factor;
    }
    __device__ __forceinline__ void store(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, const Task& task) const {
        if constexpr (!E::AGGREGATE) return;
        if (task.slot < 0) store_row<L>(args.edge.out, lanes.rows, task.row, acc);
        else store_partial<L>(args.edge.partial, lanes.rows, task.slot, acc);
    }
};

// By destination: gradients of the features and of what they are multiplied with.
template <class O, bool ANY = O::EdgeFeatures::ANY> struct FeatureGrad {
    __device__ __forceinline__ float load(
        const TraversalArgs&, const FeatureLanes<O>&, int, bool, float delta) { return delta; }
    __device__ __forceinline__ float score(float x, const FeatureRow<O>&, int) const { return x; }
    __device__ __forceinline__ float product(float x, const FeatureRow<O>&, int) const { return x; }
    __device__ __forceinline__ void store(const TraversalArgs&, const FeatureLanes<O>&, const Task&) {}
};
template <class O> struct FeatureGrad<O, true> {
    using E = typename O::EdgeFeatures;
    using L = typename E::Fragment;
    static constexpr int K = L::VALUES;
    Raw<L> query_row, grad_row;
    Fixed<L> query, grad_out;
    float grad_query[K];

    // Returns this lane's share of <grad_out, out>, added to that of the values.
    __device__ __forceinline__ float load(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, int row, bool exists, float delta) {
        const int lane = lanes.rows.lane;
        if constexpr (E::QUERY) {
            query_row.template load<true>(args.edge.query, lanes.rows, row, exists);
            query.set(query_row, lane);
        }
        if constexpr (E::AGGREGATE) {
            Raw<L> out;
            grad_row.template load<true>(args.edge.grad_out, lanes.rows, row, exists);
            out.template load<true>(args.edge.out, lanes.rows, row, exists);
            grad_out.set(grad_row, lane);
            delta += grad_out.dot(out, lane);
        }
        #pragma unroll
        for (int i = 0; i < K; i++) grad_query[i] = 0.f;
        return delta;
    }
    __device__ __forceinline__ float score(float x, const FeatureRow<O>& row, int lane) const {
        if constexpr (E::QUERY) x += query.dot(row.f, lane);
        return x;
    }
    __device__ __forceinline__ float product(float x, const FeatureRow<O>& row, int lane) const {
        if constexpr (E::AGGREGATE) x += grad_out.dot(row.f, lane);
        return x;
    }
    // One edge, whose weight and logit's gradient are given. All lanes call.
    template <class S>
    __device__ __forceinline__ void add(
        const TraversalArgs& args, const Lane<S>& at, const FeatureLanes<O>& lanes, unsigned edge,
        const FeatureRow<O>& row, float weight, float ds, bool live) {
        if constexpr (E::QUERY) {
            float f[K];
            row.f.unpack(f);
            #pragma unroll
            for (int i = 0; i < K; i++) grad_query[i] = live ? fmaf(ds, f[i], grad_query[i]) : grad_query[i];
        }
        if (args.edge.grad_rows == nullptr) return;
        float g[K];
        #pragma unroll
        for (int i = 0; i < K; i++) g[i] = 0.f;
        if constexpr (E::QUERY) {
            float q[K];
            query_row.unpack(q);
            #pragma unroll
            for (int i = 0; i < K; i++) g[i] = args.scalar[0] * ds * q[i];
        }
        if constexpr (E::AGGREGATE) {
            float go[K];
            grad_row.unpack(go);
            #pragma unroll
            for (int i = 0; i < K; i++) g[i] = fmaf(weight, go[i], g[i]);
        }
        if constexpr (E::SHARED) {
            #pragma unroll
            for (int o = S::LANES; o < S::GROUP; o <<= 1)
                #pragma unroll
                for (int i = 0; i < K; i++) g[i] += __shfl_xor_sync(ALL_LANES, g[i], o);
            live = live && at.lane % S::GROUP < S::LANES;
            // The heads before these were summed by this very lane: blocks of heads follow each other.
            if (live && at.head >= S::HEADS) add_stored(args, lanes, edge, g);
        }
        if (live) store_row<L>(args.edge.grad_rows, lanes.edges, (int)edge, g);
    }
    __device__ __forceinline__ void store(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, const Task& task) {
        if (!E::QUERY || args.edge.grad_query == nullptr) return;
        #pragma unroll
        for (int i = 0; i < K; i++) grad_query[i] *= args.scalar[0];
        if (task.slot < 0) store_row<L>(args.edge.grad_query, lanes.rows, task.row, grad_query);
        else store_partial<L>(args.edge.partial, lanes.rows, task.slot, grad_query);
    }

  private:
    static __device__ __forceinline__ void add_stored(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, unsigned edge, float (&g)[K]) {
        using T = typename L::T;
        #pragma unroll
        for (int v = 0; v < L::ACCESSES; v++) {
            if (!lanes.edges.holds(v)) continue;
            const T* from = lanes.edges.address(static_cast<T*>(args.edge.grad_rows), (int)edge, v);
            #pragma unroll
            for (int i = 0; i < L::WIDTH; i++) g[v * L::WIDTH + i] += Storage<T>::get(from[i]);
        }
    }
};

}  // namespace gnnb

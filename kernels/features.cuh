// Edge features f_e of attention: <query_i, f_e> in the logit, and sum_e w_e f_e as a second result.
//
// Mapping. A row of features is narrow, so that the S::LANES lanes of a head hold those of several edges
// side by side: Fragment::LANES lanes an edge, EDGES of them, each lane in the places of its own.
// Bytes an edge: F values by destination in each pass, none by source, which reads the weight and the
// logit's gradient that the pass by destination leaves (8 H bytes written in its order, 8 H read).
#pragma once
#include "dots.cuh"
#include "traversal.cuh"

namespace gnnb {

// Where a lane stands in rows [N, H, F], and in rows of edges, which the heads may share; `place` is which of
// the edges side by side are its own.
template <class O, bool ANY = O::EdgeFeatures::ANY> struct FeatureLanes {
    template <class S> __device__ __forceinline__ FeatureLanes(const TraversalArgs&, const Lane<S>&) {}
};
template <class O> struct FeatureLanes<O, true> {
    using L = typename O::EdgeFeatures::Fragment;
    Lane<L> rows, edges;
    int place;
    template <class S>
    __device__ __forceinline__ FeatureLanes(const TraversalArgs& args, const Lane<S>& at)
        : rows(args.heads, args.edge.features, 0), edges(rows), place(at.within / L::LANES) {
        static_assert(L::GROUP == S::GROUP && L::LANES <= S::LANES, "features need the unit's lanes");
        rows.head = edges.head = at.head;
        rows.column = edges.column = at.head * rows.dim + rows.within * L::WIDTH;
        if constexpr (O::EdgeFeatures::SHARED) {
            edges.column = edges.within * L::WIDTH;
            edges.stride = (unsigned)args.edge.features;
            edges.row_bytes = edges.stride * (unsigned)sizeof(typename L::T);
        }
    }
};

// A lane's part of a batch's features: SLOTS rows, of the edges slot * EDGES + place.
template <class O, class S, int UNROLL, bool ANY = O::EdgeFeatures::ANY> struct FeatureRows {
    template <class B>
    __device__ __forceinline__ void load(
        const TraversalArgs&, const FeatureLanes<O>&, const B&, int, bool) {}
};
template <class O, class S, int UNROLL> struct FeatureRows<O, S, UNROLL, true> {
    using L = typename O::EdgeFeatures::Fragment;
    static constexpr int EDGES = S::LANES / L::LANES, SLOTS = UNROLL > EDGES ? UNROLL / EDGES : 1;
    Raw<L> f[SLOTS];
    unsigned edge[SLOTS];
    bool live[SLOTS];      // an edge of the task
    template <class B>
    __device__ __forceinline__ void load(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, const B& batch, int count, bool masked) {
        #pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            const int u = s * EDGES + lanes.place;
            live[s] = u < UNROLL && (!masked || batch.first + u < count);
            edge[s] = batch.edge(EDGES > UNROLL ? u % UNROLL : u);
            f[s].template load<!O::EdgeFeatures::SHARED>(
                args.edge.rows, lanes.edges, (int)edge[s], live[s]);
        }
    }
    // Add each lane's share of a product of its edges to those of all edges.
    static __device__ __forceinline__ void share(
        float (&x)[UNROLL], const FeatureLanes<O>& lanes, int s, float part) {
        #pragma unroll
        for (int e = 0; e < EDGES; e++)
            if (s * EDGES + e < UNROLL) x[s * EDGES + e] += lanes.place == e ? part : 0.f;
    }
    // What belongs to the edge of a slot, out of what the owners of the batch hold.
    static __device__ __forceinline__ float of(
        const Spread<S, UNROLL>& held, const FeatureLanes<O>& lanes, int s) {
        return held.of(EDGES > UNROLL ? lanes.place % UNROLL : s * EDGES + lanes.place);
    }
    // Sum over the edges side by side.
    template <int K> static __device__ __forceinline__ void combine(float (&x)[K]) {
        #pragma unroll
        for (int o = L::LANES; o < S::LANES; o <<= 1)
            #pragma unroll
            for (int i = 0; i < K; i++) x[i] += __shfl_xor_sync(ALL_LANES, x[i], o);
    }
};

// Forward: what a destination row multiplies features with, and their sum.
template <class O, class S, bool ANY = O::EdgeFeatures::ANY> struct FeatureSum {
    __device__ __forceinline__ void load(const TraversalArgs&, const FeatureLanes<O>&, int, bool) {}
    __device__ __forceinline__ void clear() {}
    template <int N, class R>
    __device__ __forceinline__ void score(float (&)[N], const FeatureLanes<O>&, const R&) const {}
    template <int N, class R>
    __device__ __forceinline__ void add(const Spread<S, N>&, const FeatureLanes<O>&, const R&) {}
    __device__ __forceinline__ void scale(float) {}
    __device__ __forceinline__ void combine() {}
    __device__ __forceinline__ void store(const TraversalArgs&, const FeatureLanes<O>&, const Task&) const {}
};
template <class O, class S> struct FeatureSum<O, S, true> {
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
    // Adds this lane's share of <query, features> to those of the scores.
    template <int N, class R>
    __device__ __forceinline__ void score(float (&x)[N], const FeatureLanes<O>& lanes, const R& rows) const {
        if constexpr (E::QUERY) {
            #pragma unroll
            for (int s = 0; s < R::SLOTS; s++)
                R::share(x, lanes, s, query.dot(rows.f[s], lanes.rows.lane));
        }
    }
    // `weight` of the edges; 0 for what is no edge. All lanes call.
    template <int N, class R>
    __device__ __forceinline__ void add(
        const Spread<S, N>& weight, const FeatureLanes<O>& lanes, const R& rows) {
        if constexpr (!E::AGGREGATE) return;
        #pragma unroll
        for (int s = 0; s < R::SLOTS; s++) {
            float f[K];
            const float w = R::of(weight, lanes, s), own = rows.live[s] ? w : 0.f;
            rows.f[s].unpack(f);
            #pragma unroll
            for (int i = 0; i < K; i++) acc[i] = fmaf(own, f[i], acc[i]);
        }
    }
    __device__ __forceinline__ void scale(float factor) {
        #pragma unroll
        for (int i = 0; i < K; i++) acc[i] *= factor;
    }
    // Before it is stored; all lanes call.
    __device__ __forceinline__ void combine() {
        if constexpr (E::AGGREGATE) FeatureRows<O, S, 1>::combine(acc);
    }
    __device__ __forceinline__ void store(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, const Task& task) const {
        if constexpr (!E::AGGREGATE) return;
        if (lanes.place != 0) return;
        if (task.slot < 0) store_row<L>(args.edge.out, lanes.rows, task.row, acc);
        else store_partial<L>(args.edge.partial, lanes.rows, task.slot, acc);
    }
};

// By destination: gradients of the features and of what they are multiplied with.
template <class O, class S, bool ANY = O::EdgeFeatures::ANY> struct FeatureGrad {
    __device__ __forceinline__ float load(
        const TraversalArgs&, const FeatureLanes<O>&, int, bool, float delta) { return delta; }
    template <int N, class R>
    __device__ __forceinline__ void score(float (&)[N], const FeatureLanes<O>&, const R&) const {}
    template <int N, class R>
    __device__ __forceinline__ void product(float (&)[N], const FeatureLanes<O>&, const R&) const {}
    __device__ __forceinline__ void clear() {}
    __device__ __forceinline__ void combine() {}
    __device__ __forceinline__ void store(const TraversalArgs&, const FeatureLanes<O>&, const Task&) {}
};
template <class O, class S> struct FeatureGrad<O, S, true> {
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
            const float product = grad_out.dot(out, lane);
            delta += lanes.place == 0 ? product : 0.f;
        }
        clear();
        return delta;
    }
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int i = 0; i < K; i++) grad_query[i] = 0.f;
    }
    template <int N, class R>
    __device__ __forceinline__ void score(float (&x)[N], const FeatureLanes<O>& lanes, const R& rows) const {
        if constexpr (E::QUERY) {
            #pragma unroll
            for (int s = 0; s < R::SLOTS; s++)
                R::share(x, lanes, s, query.dot(rows.f[s], lanes.rows.lane));
        }
    }
    template <int N, class R>
    __device__ __forceinline__ void product(float (&x)[N], const FeatureLanes<O>& lanes, const R& rows) const {
        if constexpr (E::AGGREGATE) {
            #pragma unroll
            for (int s = 0; s < R::SLOTS; s++)
                R::share(x, lanes, s, grad_out.dot(rows.f[s], lanes.rows.lane));
        }
    }
    // A batch, of whose edges the weights and the logits' gradients are given. All lanes call.
    template <int N, class R>
    __device__ __forceinline__ void add(
        const TraversalArgs& args, const Lane<S>& at, const FeatureLanes<O>& lanes, const R& rows,
        const Spread<S, N>& weights, const Spread<S, N>& terms) {
        #pragma unroll
        for (int s = 0; s < R::SLOTS; s++) {
            const float weight = R::of(weights, lanes, s), ds = R::of(terms, lanes, s);
            const bool live = rows.live[s];
            if constexpr (E::QUERY) {
                float f[K];
                rows.f[s].unpack(f);
                #pragma unroll
                for (int i = 0; i < K; i++)
                    grad_query[i] = live ? fmaf(ds, f[i], grad_query[i]) : grad_query[i];
            }
            if (args.edge.grad_rows != nullptr) store_edge(args, at, lanes, rows.edge[s], weight, ds, live);
        }
    }
    __device__ __forceinline__ void combine() {
        if constexpr (E::QUERY) FeatureRows<O, S, 1>::combine(grad_query);
    }
    __device__ __forceinline__ void store(
        const TraversalArgs& args, const FeatureLanes<O>& lanes, const Task& task) {
        if (!E::QUERY || args.edge.grad_query == nullptr || lanes.place != 0) return;
        #pragma unroll
        for (int i = 0; i < K; i++) grad_query[i] *= args.scalar[0];
        if (task.slot < 0) store_row<L>(args.edge.grad_query, lanes.rows, task.row, grad_query);
        else store_partial<L>(args.edge.partial, lanes.rows, task.slot, grad_query);
    }

  private:
    __device__ __forceinline__ void store_edge(
        const TraversalArgs& args, const Lane<S>& at, const FeatureLanes<O>& lanes, unsigned edge,
        float weight, float ds, bool live) const {
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

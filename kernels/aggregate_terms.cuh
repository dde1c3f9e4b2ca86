// What a message contributes to the gradients of its destination's results: d loss / d message, out
// of tables with a row for each destination. Which tables depends on FLAGS (statistics.cuh):
//
//     sum        linear[i]                      gradients of sum and mean, and -2 mean g of a variance
//     square     quadratic[i] * m               2 g of sums of squares and variances
//     max, min   grad[i] where m is the extreme out[i] (divided by the ties beforehand), or where
//                the edge is kept[i]; its row is read only where a lane has such a column
//     product    whole[i] / m; lone[i] where m is 0
//     softmax    exp(t m - lse[i]) (1 + t (m - out[i])) grad[i]
#pragma once
#include "aggregate.cuh"

namespace gnnb {

// Tables [destinations, width]; linear to lse are of C, kept of Id, the others of T.
struct GradientTables {
    const void* linear;
    const void* quadratic;
    const void* whole;               // grad * product
    const void* lone;                // grad * product of the others, if one value is 0
    const void* lse;
    const void* softmax;
    const void* softmax_grad;
    const void* most;                // the extreme, or the edge that is kept
    const void* most_grad;
    const void* least;
    const void* least_grad;
    i64 width;
    const void* temperature;         // of C: one, or one a column
    i64 temperature_step;
};

// A lane's columns of a row of P.
template <class L, typename P> struct PlainRow {
    P value[L::VALUES];
    __device__ __forceinline__ void load(
        const void* table, const Place<L>& at, i64 width, i64 row, bool live) {
        const P* from = static_cast<const P*>(table) + row * width + at.first;
        constexpr int EACH = 16 / sizeof(P) < L::VALUES ? 16 / sizeof(P) : L::VALUES;
        if constexpr (L::VECTOR) {
            #pragma unroll
            for (int v = 0; v < L::VALUES; v += EACH) {
                Bundle<P, EACH> some = {};
                if (live && at.holds(0)) some = *reinterpret_cast<const Bundle<P, EACH>*>(from + v);
                #pragma unroll
                for (int i = 0; i < EACH; i++) value[v + i] = some.value[i];
            }
        } else {
            #pragma unroll
            for (int v = 0; v < L::VALUES; v++)
                value[v] = live && at.holds(v) ? from[v * L::LANES] : (P)0;
        }
    }
};

// The same of a row of T, as loaded.
template <class L> struct TypedRow {
    typename Operand<L, ROW>::Loaded loaded;
    __device__ __forceinline__ void load(
        const void* table, const Place<L>& at, i64 width, i64 row, bool live) {
        const Table rows{table, nullptr, width * (i64)sizeof(typename L::T)};
        Operand<L, ROW>(rows, at, 1).load(loaded, at, row, live);
    }
};

// One extreme.
template <class M, int FLAGS, class L, typename Id, int DEPTH> struct ExtremeTerm {
    using C = typename L::C;
    static constexpr bool BY_PLACE = (FLAGS & FIRST) != 0, NANS = (FLAGS & NAN_WINS) != 0;
    using Key = typename Choose<BY_PLACE, PlainRow<L, Id>, TypedRow<L>>::type;
    Key key[DEPTH];
    TypedRow<L> grad[DEPTH];
    int hits[DEPTH];                               // a bit a column

    // Which of the messages m are the extreme, and then the gradient's row if any is.
    __device__ __forceinline__ void match(
        int d, const void* table, const Place<L>& at, i64 width, i64 row, Id edge, bool live,
        const C (&m)[L::VALUES]) {
        int found = 0;
        if constexpr (BY_PLACE) {
            #pragma unroll
            for (int v = 0; v < L::VALUES; v++) found |= (int)(key[d].value[v] == edge) << v;
        } else {
            C out[L::VALUES];
            key[d].loaded.unpack(out);
            #pragma unroll
            for (int v = 0; v < L::VALUES; v++) {
                const C rounded = M::EXACT ? m[v] : as_stored<typename L::T>(m[v]);
                found |= (int)(rounded == out[v]) << v;
            }
        }
        hits[d] = live ? found : 0;
        grad[d].load(table, at, width, row, hits[d] != 0);
    }
    __device__ __forceinline__ void add(int d, C (&dm)[L::VALUES]) const {
        C g[L::VALUES];
        grad[d].loaded.unpack(g);
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++) dm[v] += hits[d] >> v & 1 ? g[v] : (C)0;
        if constexpr (!BY_PLACE && NANS) {          // of a NaN nobody has the gradient, as in torch
            C out[L::VALUES];
            key[d].loaded.unpack(out);
            #pragma unroll
            for (int v = 0; v < L::VALUES; v++) dm[v] += out[v] == out[v] ? (C)0 : out[v];
        }
    }
};

// All terms of DEPTH edges.
template <class M, int FLAGS, class L, typename Id, int DEPTH> struct GradientTerms {
    using C = typename L::C;
    static constexpr int K = L::VALUES;
    static constexpr bool has(int flag) { return (FLAGS & flag) != 0; }
    static constexpr int held(int flag) { return has(flag) ? DEPTH : 1; }
    using Extreme = ExtremeTerm<M, FLAGS, L, Id, DEPTH>;
    PlainRow<L, C> linear[held(STAT_SUM)], quadratic[held(STAT_SQUARE)];
    PlainRow<L, C> whole[held(STAT_PRODUCT)], lone[held(STAT_PRODUCT)], lse[held(STAT_SOFTMAX)];
    TypedRow<L> softmax[held(STAT_SOFTMAX)], softmax_grad[held(STAT_SOFTMAX)];
    Extreme most, least;

    // What is read for every edge.
    __device__ __forceinline__ void load(
        const GradientTables& t, const Place<L>& at, int d, i64 row, bool live) {
        if constexpr (has(STAT_SUM)) linear[d].load(t.linear, at, t.width, row, live);
        if constexpr (has(STAT_SQUARE)) quadratic[d].load(t.quadratic, at, t.width, row, live);
        if constexpr (has(STAT_MAX)) most.key[d].load(t.most, at, t.width, row, live);
        if constexpr (has(STAT_MIN)) least.key[d].load(t.least, at, t.width, row, live);
        if constexpr (has(STAT_PRODUCT)) whole[d].load(t.whole, at, t.width, row, live);
        if constexpr (has(STAT_SOFTMAX)) {
            lse[d].load(t.lse, at, t.width, row, live);
            softmax[d].load(t.softmax, at, t.width, row, live);
            softmax_grad[d].load(t.softmax_grad, at, t.width, row, live);
        }
    }
    // What is read only where the message calls for it.
    __device__ __forceinline__ void select(
        const GradientTables& t, const Place<L>& at, int d, i64 row, Id edge, bool live,
        const C (&m)[K]) {
        if constexpr (has(STAT_MAX)) most.match(d, t.most_grad, at, t.width, row, edge, live, m);
        if constexpr (has(STAT_MIN)) least.match(d, t.least_grad, at, t.width, row, edge, live, m);
        if constexpr (has(STAT_PRODUCT)) {
            bool zero = false;
            #pragma unroll
            for (int v = 0; v < K; v++) zero = zero || m[v] == 0;
            lone[d].load(t.lone, at, t.width, row, live && zero);
        }
    }
    __device__ __forceinline__ void gradient(
        int d, const C (&m)[K], const C (&temperature)[K], C (&dm)[K]) const {
        #pragma unroll
        for (int v = 0; v < K; v++) dm[v] = 0;
        #pragma unroll
        for (int v = 0; v < K; v++) {
            if constexpr (has(STAT_SUM)) dm[v] += linear[d].value[v];
            if constexpr (has(STAT_SQUARE)) dm[v] += quadratic[d].value[v] * m[v];
            if constexpr (has(STAT_PRODUCT))
                dm[v] += m[v] == 0 ? lone[d].value[v] : whole[d].value[v] / m[v];
        }
        if constexpr (has(STAT_MAX)) most.add(d, dm);
        if constexpr (has(STAT_MIN)) least.add(d, dm);
        if constexpr (has(STAT_SOFTMAX)) {
            C out[K], g[K];
            softmax[d].loaded.unpack(out);
            softmax_grad[d].loaded.unpack(g);
            #pragma unroll
            for (int v = 0; v < K; v++) {
                const C weight = exponential(temperature[v] * m[v] - lse[d].value[v]);
                dm[v] += weight * (1 + temperature[v] * (m[v] - out[v])) * g[v];
            }
        }
    }
};

}  // namespace gnnb

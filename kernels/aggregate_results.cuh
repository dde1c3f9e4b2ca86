// What an aggregation writes of a row: results as T, and what backward wants of them.
#pragma once
#include "statistics.cuh"

namespace gnnb {

// [rows, width] each; null: not wanted.
struct Results {
    void* sum;                       // of T, down to softmax
    void* mean;
    void* square;
    void* var;
    void* std;
    void* most;
    void* least;
    void* product;
    void* softmax;
    void* center;                    // the mean, of C
    void* most_kept;                 // ties of C, or the first edge of Id, -1 for none
    void* least_kept;
    void* rest;                      // product of all but zeros, of C
    void* zeros;                     // how many of these, of C
    void* lse;                       // logarithm of the softmax's denominator, of C
    void* spread;                    // softmax-weighted variance, of C
};

// PyG's deviation: 0 up to this.
template <typename C> __device__ __forceinline__ C deviation(C variance) {
    const C floor = (C)1e-5, root = sqrt(variance < floor ? floor : variance);
    return root <= (C)0.0031622776601683795 ? (C)0 : root;
}

// Columns of a finished row. write(table, values, Flag): Flag<true> as T, else as they are.
template <class S, int K, class Write> struct Finish {
    using C = typename S::C;
    using Id = typename S::Id;
    const S (&stat)[K];
    C count;
    Write write;

    template <bool TYPED, typename F> __device__ __forceinline__ void put(void* table, F value) {
        if (table == nullptr) return;
        decltype(value(stat[0])) x[K];
        #pragma unroll
        for (int v = 0; v < K; v++) x[v] = value(stat[v]);
        write(table, x, Flag<TYPED>());
    }
    // An extreme of messages, and what backward wants of it.
    template <bool MAX, class E> __device__ __forceinline__ void extreme(
        void* out, void* kept, const Id* ids) {
        const bool empty = count == 0;
        auto nothing = [&](const E& e) {
            const bool unbeaten = e.best == Order<MAX>::template worst<C>();
            return empty || (!S::has(NAN_WINS) && unbeaten);
        };
        put<true>(out, [&](const S& s) {
            const E& e = s;
            return nothing(e) ? (C)0 : e.best;
        });
        if constexpr (S::has(KEEP) && S::has(FIRST)) {
            put<false>(kept, [&](const S& s) {
                const Id place = static_cast<const E&>(s).place;
                if (place == nowhere<Id>()) return (Id)-1;
                return ids == nullptr ? place : __ldg(ids + place);
            });
        } else if constexpr (S::has(KEEP)) {
            put<false>(kept, [&](const S& s) {
                const E& e = s;
                return e.ties + (e.best == 0 ? (C)1 : (C)0);  // torch counts the initial 0 as well
            });
        }
    }
    __device__ __forceinline__ void run(const Results& to, const Id* ids) {
        // One division a row: those of each column took a third of a pass over short rows.
        const C share = (C)1 / (count > 0 ? count : (C)1);
        if constexpr (S::has(STAT_SUM)) {
            put<true>(to.sum, [](const S& s) { return s.sum; });
            put<true>(to.mean, [&](const S& s) { return s.sum * share; });
            put<false>(to.center, [&](const S& s) { return s.sum * share; });
        }
        if constexpr (S::has(STAT_SQUARE)) put<true>(to.square, [](const S& s) { return s.square; });
        if constexpr (S::has(STAT_SUM) && S::has(STAT_SQUARE)) {
            auto variance = [&](const S& s) {
                const C mean = s.sum * share;
                return s.square * share - mean * mean;
            };
            put<true>(to.var, variance);
            put<true>(to.std, [&](const S& s) { return deviation(variance(s)); });
        }
        if constexpr (S::has(STAT_MAX)) extreme<true, typename S::Most>(to.most, to.most_kept, ids);
        if constexpr (S::has(STAT_MIN)) extreme<false, typename S::Least>(to.least, to.least_kept, ids);
        if constexpr (S::has(STAT_PRODUCT)) {
            put<true>(to.product, [](const S& s) { return s.product; });
            if constexpr (S::has(KEEP)) {
                put<false>(to.rest, [](const S& s) { return s.rest; });
                put<false>(to.zeros, [](const S& s) { return s.zeros; });
            }
        }
        if constexpr (S::has(STAT_SOFTMAX)) {
            put<true>(to.softmax, [&](const S& s) { return count > 0 ? s.weighted / s.weights : (C)0; });
            put<false>(to.lse, [&](const S& s) { return s.top + logarithm(s.weights); });
            if constexpr (S::has(SECOND))
                put<false>(to.spread, [&](const S& s) {
                    const C mean = s.weighted / s.weights;
                    return count > 0 ? s.second / s.weights - mean * mean : (C)0;
                });
        }
    }
};

template <class S, int K, class Write>
__device__ __forceinline__ void finish(
    const Results& to, const typename S::Id* ids, const S (&stat)[K], typename S::C count, Write write) {
    Finish<S, K, Write>{stat, count, write}.run(to, ids);
}

}  // namespace gnnb

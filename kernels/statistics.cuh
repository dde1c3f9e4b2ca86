// What a row's messages leave, column by column: any set of sums, extremes, products and softmax
// sums, of which only those that FLAGS name take registers.
//
// A statistic has clear, add (one message at a place of the CSR), take (from another lane), and
// merge, whose order does not matter but for rounding: which of equal extremes is the first is
// decided by place.
#pragma once
#include "exponential.cuh"
#include "reductions.cuh"

namespace gnnb {

// What is wanted of a row.
constexpr int STAT_SUM = 1, STAT_SQUARE = 2, STAT_MAX = 4, STAT_MIN = 8, STAT_PRODUCT = 16,
              STAT_SOFTMAX = 32;
constexpr int KEEP = 64;        // also what backward wants
constexpr int FIRST = 128;      // the first of equal extremes, instead of how many there are
constexpr int NAN_WINS = 256;   // a NaN beats every number, else it never wins
constexpr int SECOND = 512;     // the softmax-weighted sum of squares, for the temperature

template <typename Id> __device__ __forceinline__ Id nowhere() {
    return (Id)(sizeof(Id) == 8 ? 0x7fffffffffffffffLL : (long long)NOWHERE);
}

template <typename C> __device__ __forceinline__ C shuffled(C x, int distance) {
    return __shfl_xor_sync(ALL_LANES, x, distance);
}

// The larger or smaller of two; with NANS a NaN if there is one, else a NaN if both are.
template <bool MAX, bool NANS> __device__ __forceinline__ float extreme_of(float a, float b) {
    if constexpr (NANS) return MAX ? max_nan(a, b) : min_nan(a, b);
    else return MAX ? max(a, b) : min(a, b);
}
template <bool MAX, bool NANS> __device__ __forceinline__ double extreme_of(double a, double b) {
    if (NANS && a != a) return a;
    if (NANS && b != b) return b;
    return MAX ? max(a, b) : min(a, b);
}

template <typename C> struct SumStat {
    C sum;
    __device__ __forceinline__ void clear() { sum = 0; }
    __device__ __forceinline__ void add(C m) { sum += m; }
    __device__ __forceinline__ void take(const SumStat& from, int distance) {
        sum = shuffled(from.sum, distance);
    }
    __device__ __forceinline__ void merge(const SumStat& other) { sum += other.sum; }
};

template <typename C> struct SquareStat {
    C square;
    __device__ __forceinline__ void clear() { square = 0; }
    __device__ __forceinline__ void add(C m) { square += m * m; }
    __device__ __forceinline__ void take(const SquareStat& from, int distance) {
        square = shuffled(from.square, distance);
    }
    __device__ __forceinline__ void merge(const SquareStat& other) { square += other.square; }
};

// An extreme alone.
template <typename C, bool MAX, bool NANS> struct Best {
    C best;
    __device__ __forceinline__ void clear() { best = Order<MAX>::template worst<C>(); }
    template <typename Id> __device__ __forceinline__ void add(C m, Id) {
        best = extreme_of<MAX, NANS>(best, m);
    }
    template <typename Id> __device__ __forceinline__ void seen(Id) {}
    __device__ __forceinline__ void take(const Best& from, int distance) {
        best = shuffled(from.best, distance);
    }
    __device__ __forceinline__ void merge(const Best& other) {
        best = extreme_of<MAX, NANS>(best, other.best);
    }
};

// With the number of messages that are equal to it.
template <typename C, bool MAX, bool NANS> struct TiedBest {
    C best, ties;
    __device__ __forceinline__ void clear() {
        best = Order<MAX>::template worst<C>();
        ties = 0;
    }
    // In arithmetic, since comparisons can leave 0 or 1 in a register and selections take one more.
    __device__ __forceinline__ void count(C m, C many) {
        const C before = best;
        best = extreme_of<MAX, NANS>(best, m);
        ties = ties * (before == best ? (C)1 : (C)0) + many * (m == best ? (C)1 : (C)0);
    }
    template <typename Id> __device__ __forceinline__ void add(C m, Id) { count(m, 1); }
    template <typename Id> __device__ __forceinline__ void seen(Id) {}
    __device__ __forceinline__ void take(const TiedBest& from, int distance) {
        best = shuffled(from.best, distance);
        ties = shuffled(from.ties, distance);
    }
    __device__ __forceinline__ void merge(const TiedBest& other) { count(other.best, other.ties); }
};

// With the place of the first message that is equal to it.
template <typename C, bool MAX, bool NANS, typename Id> struct FirstBest {
    C best;
    Id place;
    __device__ __forceinline__ void clear() {
        best = Order<MAX>::template worst<C>();
        place = nowhere<Id>();
    }
    __device__ __forceinline__ void add(C m, Id at) {
        // Beaten, equal or after a NaN: what remains, a NaN among it, wins.
        const bool kept = MAX ? m <= best : m >= best;
        const bool wins = NANS ? !kept && best == best : Order<MAX>::better(m, best);
        best = wins ? m : best;
        place = wins ? at : place;
    }
    // A message at this place is the first; where none won, all are as bad as can be.
    __device__ __forceinline__ void seen(Id first) {
        if (NANS && place == nowhere<Id>()) place = first;
    }
    __device__ __forceinline__ void take(const FirstBest& from, int distance) {
        best = shuffled(from.best, distance);
        place = shuffled(from.place, distance);
    }
    __device__ __forceinline__ void merge(const FirstBest& other) {
        bool wins = Order<MAX>::better(other.best, best);
        if (NANS) wins = wins || (other.best != other.best && best == best);
        const bool equal = other.best == best || (other.best != other.best && best != best);
        wins = wins || (equal && other.place < place);
        best = wins ? other.best : best;
        place = wins ? other.place : place;
    }
};

template <typename C> struct ProductStat {
    C product;
    __device__ __forceinline__ void clear() { product = 1; }
    __device__ __forceinline__ void add(C m) { product *= m; }
    __device__ __forceinline__ void take(const ProductStat& from, int distance) {
        product = shuffled(from.product, distance);
    }
    __device__ __forceinline__ void merge(const ProductStat& other) { product *= other.product; }
};

// With the product of all but zeros, and how many of these there are.
template <typename C> struct ZeroProductStat {
    C product, rest, zeros;
    __device__ __forceinline__ void clear() {
        product = rest = 1;
        zeros = 0;
    }
    __device__ __forceinline__ void add(C m) {
        product *= m;
        rest *= m == 0 ? (C)1 : m;
        zeros += m == 0 ? (C)1 : (C)0;
    }
    __device__ __forceinline__ void take(const ZeroProductStat& from, int distance) {
        product = shuffled(from.product, distance);
        rest = shuffled(from.rest, distance);
        zeros = shuffled(from.zeros, distance);
    }
    __device__ __forceinline__ void merge(const ZeroProductStat& other) {
        product *= other.product;
        rest *= other.rest;
        zeros += other.zeros;
    }
};

// Largest logit, sums of weights, of weighted messages and, with SQUARES, of weighted squares.
template <typename C, bool SQUARES> struct WeightedStat {
    C top, weights, weighted, second;
    __device__ __forceinline__ void clear() {
        top = lowest<C>();
        weights = weighted = second = 0;
    }
    __device__ __forceinline__ void add(C m, C logit) {
        const bool higher = logit > top;
        const C small = exponential(higher ? top - logit : logit - top);
        const C keep = higher ? small : (C)1;
        const C weight = higher ? (C)1 + (logit - logit) : small;  // NaN where infinite, as in torch
        weights = weights * keep + weight;
        weighted = weighted * keep + weight * m;
        if (SQUARES) second = second * keep + weight * m * m;
        top = higher ? logit : top;
    }
    __device__ __forceinline__ void take(const WeightedStat& from, int distance) {
        top = shuffled(from.top, distance);
        weights = shuffled(from.weights, distance);
        weighted = shuffled(from.weighted, distance);
        if (SQUARES) second = shuffled(from.second, distance);
    }
    __device__ __forceinline__ void merge(const WeightedStat& other) {
        const C next = max(top, other.top);
        const C mine = exponential(top - next), theirs = exponential(other.top - next);
        weights = weights * mine + other.weights * theirs;
        weighted = weighted * mine + other.weighted * theirs;
        if (SQUARES) second = second * mine + other.second * theirs;
        top = next;
    }
};

// A statistic, or nothing.
template <bool ON, class S, int WHICH> struct Optional : S {};
template <class S, int WHICH> struct Optional<false, S, WHICH> {
    __device__ __forceinline__ void clear() {}
    template <typename... Any> __device__ __forceinline__ void add(Any...) {}
    template <typename Any> __device__ __forceinline__ void seen(Any) {}
    __device__ __forceinline__ void take(const Optional&, int) {}
    __device__ __forceinline__ void merge(const Optional&) {}
};

template <bool A, class Then, class Else> struct Choose { using type = Then; };
template <class Then, class Else> struct Choose<false, Then, Else> { using type = Else; };

template <typename C, int FLAGS, bool MAX, typename Id> struct ExtremeOf {
    static constexpr bool NANS = (FLAGS & NAN_WINS) != 0;
    using Kept = typename Choose<
        (FLAGS & FIRST) != 0, FirstBest<C, MAX, NANS, Id>, TiedBest<C, MAX, NANS>>::type;
    using type = typename Choose<(FLAGS & KEEP) != 0, Kept, Best<C, MAX, NANS>>::type;
};

// All statistics of one column.
template <typename C_, int FLAGS_, typename Id_>
struct Statistics : Optional<(FLAGS_ & STAT_SUM) != 0, SumStat<C_>, 0>,
                    Optional<(FLAGS_ & STAT_SQUARE) != 0, SquareStat<C_>, 1>,
                    Optional<(FLAGS_ & STAT_MAX) != 0, typename ExtremeOf<C_, FLAGS_, true, Id_>::type, 2>,
                    Optional<(FLAGS_ & STAT_MIN) != 0, typename ExtremeOf<C_, FLAGS_, false, Id_>::type, 3>,
                    Optional<(FLAGS_ & STAT_PRODUCT) != 0,
                             typename Choose<(FLAGS_ & KEEP) != 0, ZeroProductStat<C_>, ProductStat<C_>>::type, 4>,
                    Optional<(FLAGS_ & STAT_SOFTMAX) != 0, WeightedStat<C_, (FLAGS_ & SECOND) != 0>, 5> {
    using C = C_;
    using Id = Id_;
    static constexpr int FLAGS = FLAGS_;
    static constexpr bool KEPT = (FLAGS & KEEP) != 0;
    static constexpr bool has(int flag) { return (FLAGS & flag) != 0; }
    using Sum = Optional<(FLAGS & STAT_SUM) != 0, SumStat<C>, 0>;
    using Square = Optional<(FLAGS & STAT_SQUARE) != 0, SquareStat<C>, 1>;
    using Most = Optional<(FLAGS & STAT_MAX) != 0, typename ExtremeOf<C, FLAGS, true, Id>::type, 2>;
    using Least = Optional<(FLAGS & STAT_MIN) != 0, typename ExtremeOf<C, FLAGS, false, Id>::type, 3>;
    using Product = Optional<(FLAGS & STAT_PRODUCT) != 0,
        typename Choose<KEPT, ZeroProductStat<C>, ProductStat<C>>::type, 4>;
    using Softmax = Optional<(FLAGS & STAT_SOFTMAX) != 0, WeightedStat<C, (FLAGS & SECOND) != 0>, 5>;

    __device__ __forceinline__ void clear() {
        Sum::clear(), Square::clear(), Most::clear(), Least::clear(), Product::clear();
        Softmax::clear();
    }
    // `rounded`: the message as it is stored, which extremes compare.
    __device__ __forceinline__ void add(C m, C rounded, Id place, C temperature) {
        Sum::add(m), Square::add(m), Most::add(rounded, place), Least::add(rounded, place);
        Product::add(m), Softmax::add(m, m * temperature);
    }
    // After the last message; `first`: place of the first, where there is one.
    __device__ __forceinline__ void seen(Id first) {
        Most::seen(first), Least::seen(first);
    }
    __device__ __forceinline__ Statistics from_lane(int distance) const {
        Statistics other;
        other.Sum::take(*this, distance), other.Square::take(*this, distance);
        other.Most::take(*this, distance), other.Least::take(*this, distance);
        other.Product::take(*this, distance), other.Softmax::take(*this, distance);
        return other;
    }
    __device__ __forceinline__ void merge(const Statistics& other) {
        Sum::merge(other), Square::merge(other), Most::merge(other), Least::merge(other);
        Product::merge(other), Softmax::merge(other);
    }
};

}  // namespace gnnb

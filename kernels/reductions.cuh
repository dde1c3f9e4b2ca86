// How the messages of a row are reduced: sum, and the largest or smallest with its place.
//
// A reduction R gives Columns-wise state with clear, add (one edge), combine (over the edges that
// stand side by side), and value; better(a, b) of an extreme is strict, so that the first of equal
// messages wins and NaN never does.
#pragma once
#include "edges.cuh"

namespace gnnb {

constexpr int NOWHERE = 0x7fffffff;   // no message won yet: beyond every place in a task

// EXACT: edges that are not there may not add zeros (the operator makes something else of them).
template <class L, bool EXACT> struct Sum {
    using C = typename L::C;
    static constexpr bool ARGUMENTS = false;
    C total[L::VALUES];
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++) total[v] = 0;
    }
    __device__ __forceinline__ void add(const C (&x)[L::VALUES], int, bool live) {
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++) total[v] += EXACT && !live ? (C)0 : x[v];
    }
    __device__ __forceinline__ void combine() {
        #pragma unroll
        for (int o = L::LANES; o < L::GROUP; o <<= 1)
            #pragma unroll
            for (int v = 0; v < L::VALUES; v++) total[v] += __shfl_xor_sync(ALL_LANES, total[v], o);
    }
};

template <bool MAX> struct Order {
    template <typename C> static __device__ __forceinline__ C worst() {
        return MAX ? (C)negative_infinity() : -(C)negative_infinity();
    }
    template <typename C> static __device__ __forceinline__ bool better(C a, C b) {
        return MAX ? a > b : a < b;
    }
};

template <class L, bool MAX, bool ARGUMENTS_> struct Extreme {
    using C = typename L::C;
    static constexpr bool ARGUMENTS = ARGUMENTS_;
    C total[L::VALUES];
    int where[ARGUMENTS ? L::VALUES : 1];          // position in the task
    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++) total[v] = Order<MAX>::template worst<C>();
        #pragma unroll
        for (int v = 0; v < (ARGUMENTS ? L::VALUES : 1); v++) where[v] = NOWHERE;
    }
    __device__ __forceinline__ void add(const C (&x)[L::VALUES], int position, bool live) {
        #pragma unroll
        for (int v = 0; v < L::VALUES; v++) {
            const bool wins = live && Order<MAX>::better(x[v], total[v]);
            total[v] = wins ? x[v] : total[v];
            if constexpr (ARGUMENTS) where[v] = wins ? position : where[v];
        }
    }
    __device__ __forceinline__ void combine() {
        #pragma unroll
        for (int o = L::LANES; o < L::GROUP; o <<= 1)
            #pragma unroll
            for (int v = 0; v < L::VALUES; v++) {
                const C other = __shfl_xor_sync(ALL_LANES, total[v], o);
                bool wins = Order<MAX>::better(other, total[v]);
                if constexpr (ARGUMENTS) {
                    const int place = __shfl_xor_sync(ALL_LANES, where[v], o);
                    wins = wins || (other == total[v] && place < where[v]);
                    where[v] = wins ? place : where[v];
                }
                total[v] = wins ? other : total[v];
            }
    }
};

}  // namespace gnnb

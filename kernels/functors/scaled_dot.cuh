// A dot product with a factor of the source's own: logit = (el_src + er_dst) * <x_src, q_dst>;
// value = x_src. AGNN's cosine (Thekumparampil et al., 2018) is it with el the source's inverse length.
//
// The tables and what is read are SuperGAT's; only the logit differs.
#pragma once
#include "functors/supergat.cuh"

namespace gnnb {

template <class S, class O = Plain> struct ScaledDot : SuperGAT<S, O> {
    using Params = typename SuperGAT<S, O>::Params;
    static __device__ __forceinline__ float logit(const Params&, float sum, float term) {
        return base2_term(term * sum);
    }
    static __device__ __forceinline__ float slope_of(const Params&, float, float term) { return term; }
    static __device__ __forceinline__ float term_slope(const Params&, float sum, float) { return sum; }
};

}  // namespace gnnb

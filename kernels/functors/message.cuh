// What an edge makes of its source's value and of its own, and the derivatives, value by value.
// EXACT: the message is a value as it is stored, which needs no rounding to be compared.
#pragma once
#include "common.cuh"

namespace gnnb {

#define GNNB_MESSAGE(NAME, EXACT_, VALUE, BY_X, BY_EDGE)                                        \
    struct NAME {                                                                               \
        static constexpr bool EXACT = EXACT_;                                                   \
        template <typename C> static __device__ __forceinline__ C value(C x, C edge) {          \
            return VALUE;                                                                       \
        }                                                                                       \
        template <typename C> static __device__ __forceinline__ C by_x(C x, C edge, C grad) {   \
            return BY_X;                                                                        \
        }                                                                                       \
        template <typename C> static __device__ __forceinline__ C by_edge(C x, C edge, C grad) { \
            return BY_EDGE;                                                                     \
        }                                                                                       \
    };
GNNB_MESSAGE(Copy, true, x, grad, (C)0)
GNNB_MESSAGE(Times, false, x * edge, edge * grad, x * grad)
GNNB_MESSAGE(Plus, false, x + edge, grad, grad)
// As torch's relu: NaN stays, and lets the gradient through.
GNNB_MESSAGE(PlusRelu, false, x + edge < 0 ? (C)0 : x + edge, x + edge <= 0 ? (C)0 : grad,
             x + edge <= 0 ? (C)0 : grad)
#undef GNNB_MESSAGE

}  // namespace gnnb

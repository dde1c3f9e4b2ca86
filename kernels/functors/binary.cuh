// What a sparse operator computes of two operands, value by value.
// ZEROS: zeros give zero, so that an edge that is not there adds nothing to a sum.
#pragma once
#include "common.cuh"

namespace gnnb {

#define GNNB_BINARY(NAME, ZEROS_, EXPRESSION)                                                 \
    struct NAME {                                                                             \
        static constexpr bool ZEROS = ZEROS_;                                                 \
        template <typename C> static __device__ __forceinline__ C apply(C left, C right) {    \
            return EXPRESSION;                                                                \
        }                                                                                     \
    };
GNNB_BINARY(Add, true, left + right)
GNNB_BINARY(Sub, true, left - right)
GNNB_BINARY(Mul, true, left * right)
GNNB_BINARY(Div, false, left / right)
GNNB_BINARY(CopyLhs, true, left)
GNNB_BINARY(CopyRhs, true, right)
#undef GNNB_BINARY

}  // namespace gnnb

// Exponentials and logarithms of either arithmetic type, and where a running maximum starts.
#pragma once
#include "common.cuh"

namespace gnnb {

__device__ __forceinline__ float exponential(float x) { return exp2_approx(x * LOG2E); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return log2_approx(x) / LOG2E; }
__device__ __forceinline__ double logarithm(double x) { return log(x); }

// Where a running maximum starts: the lowest finite value, with which users mask; -inf below it
// gives 0.
template <typename C> __device__ __forceinline__ C lowest() {
    return sizeof(C) == 8 ? (C)-1.7976931348623157e308 : (C)-LARGEST;
}

}  // namespace gnnb

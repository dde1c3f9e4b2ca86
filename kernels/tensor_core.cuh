// Products of tensor cores, by the type of what they multiply.
#pragma once
#include "common.cuh"

namespace gnnb {

// A product of tensor cores takes 32 bytes of each row at a time. `operand`: as it takes a word.
template <typename T> struct TensorCore;
template <> struct TensorCore<bf16> {
    static __device__ __forceinline__ unsigned operand(unsigned x) { return x; }
    static __device__ __forceinline__ unsigned pack(float lo, float hi) { return pack_bf16x2(lo, hi); }
    static __device__ __forceinline__ void multiply(
        float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        mma_bf16(c, a0, a1, a2, a3, b0, b1);
    }
};
template <> struct TensorCore<f16> {
    static __device__ __forceinline__ unsigned operand(unsigned x) { return x; }
    static __device__ __forceinline__ unsigned pack(float lo, float hi) { return pack_f16x2(lo, hi); }
    static __device__ __forceinline__ void multiply(
        float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        mma_f16(c, a0, a1, a2, a3, b0, b1);
    }
};
template <> struct TensorCore<float> {
    static __device__ __forceinline__ unsigned operand(unsigned x) { return round_tf32(x); }
    static __device__ __forceinline__ void multiply(
        float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
        mma_tf32(c, a0, a1, a2, a3, b0, b1);
    }
};

}  // namespace gnnb

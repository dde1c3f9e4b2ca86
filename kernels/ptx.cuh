// The only file with inline PTX. Its functions exist under the same names, with the same results,
// in emulator/ptx.cuh, which has the same include guard and replaces this file on the host.
// Needs sm_80 or later. No toolkit header is included: NVRTC knows the built-in types by itself.
#ifndef GNNB_PTX_CUH
#define GNNB_PTX_CUH

// bfloat16 is the upper half of a float.
__device__ __forceinline__ float bf16_to_float(unsigned short x) {
  return __uint_as_float(static_cast<unsigned int>(x) << 16);
}

// Two floats to two bfloat16, `lo` in the lower half: to nearest even, any NaN becomes 0x7fff.
__device__ __forceinline__ unsigned int pack_bf16x2(float lo, float hi) {
  unsigned int packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}

__device__ __forceinline__ unsigned short float_to_bf16(float x) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ __forceinline__ float f16_to_float(unsigned short x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x));
  return value;
}

// Two floats to two halves, `lo` in the lower half: to nearest even, any NaN becomes 0x7fff.
__device__ __forceinline__ unsigned int pack_f16x2(float lo, float hi) {
  unsigned int packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}

__device__ __forceinline__ unsigned short float_to_f16(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

// 2^x to within 2 ulp; exactly 0 for -inf (and where the result would be subnormal), NaN for NaN.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x), absolute error up to 2^-22 near 1; -inf for 0, NaN below 0.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Rows that are read or written once: they are the first to leave the caches, which are left to
// the rows that are gathered again and again.
__device__ __forceinline__ uint4 load_streaming(const uint4* address) {
  uint4 v;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

__device__ __forceinline__ void store_streaming(uint4* address, uint4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

#endif

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

// The larger and the smaller of two numbers, NaN if either is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Two bfloat16 sums, rounded once. Before sm_90 a fused multiply-add by one.
__device__ __forceinline__ unsigned int add_bf16x2(unsigned int a, unsigned int b) {
  unsigned int sum;
#if __CUDA_ARCH__ >= 900
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80u), "r"(b));
#endif
  return sum;
}

__device__ __forceinline__ unsigned int add_f16x2(unsigned int a, unsigned int b) {
  unsigned int sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

// c += A B for A [16, 16] and B [16, 8], by the whole warp. Of lane 4 g + t, a0 and a2 are columns 2 t,
// 2 t + 1 and 2 t + 8, 2 t + 9 of row g of A, a1 and a3 of row g + 8; b0 and b1 are the same rows of column
// g of B; c is columns 2 t, 2 t + 1 of rows g and g + 8.
__device__ __forceinline__ void mma_bf16(float (&c)[4], unsigned int a0, unsigned int a1,
                                         unsigned int a2, unsigned int a3, unsigned int b0,
                                         unsigned int b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16(float (&c)[4], unsigned int a0, unsigned int a1,
                                        unsigned int a2, unsigned int a3, unsigned int b0,
                                        unsigned int b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The nearest float of 11 significant bits, ties away from zero, which tensor cores take as tf32.
__device__ __forceinline__ unsigned int round_tf32(unsigned int x) {
  unsigned int rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(x)));
  return rounded;
}

// c += A B for A [16, 8] and B [8, 8] of tf32, by the whole warp. Of lane 4 g + t, a0 and a2 are columns t
// and t + 4 of row g of A, a1 and a3 of row g + 8; b0 and b1 are the same rows of column g of B; c as
// above.
__device__ __forceinline__ void mma_tf32(float (&c)[4], unsigned int a0, unsigned int a1,
                                         unsigned int a2, unsigned int a3, unsigned int b0,
                                         unsigned int b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// x, of which the compiler is to know nothing: it widens a product that it sees through, at the cost of
// an addition an address.
__device__ __forceinline__ unsigned int opaque(unsigned int x) {
  asm("" : "+r"(x));
  return x;
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

// 16 bytes from global to shared memory, in the background; zeros where not `live`, and nothing is read.
// Both addresses are multiples of 16.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool live) {
  const unsigned int to = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
  const unsigned int bytes = live ? 16u : 0u;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}

// Close a thread's group of copies; wait until all its groups but the last PENDING have arrived. Other
// threads see them after a barrier that follows the wait.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif

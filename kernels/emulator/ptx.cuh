// Host versions of the functions in kernels/ptx.cuh, same names and same results.
//
// It has the include guard of the real file, so that a kernel's own #include of "ptx.cuh", which
// would find the real one next to it, has no effect.
#ifndef GNNB_PTX_CUH
#define GNNB_PTX_CUH

static inline float bf16_to_float(unsigned short x) {
  return __uint_as_float(static_cast<unsigned>(x) << 16);
}

// Rounds to nearest, ties to even; any NaN becomes 0x7fff, as cvt.rn.bf16.f32 makes it.
static inline unsigned short float_to_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float f16_to_float(unsigned short x) {
  const unsigned sign = (x & 0x8000u) << 16;
  const unsigned exponent = x >> 10 & 31u;
  const unsigned mantissa = x & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return __uint_as_float(__float_as_uint(magnitude) | sign);
  }
  if (exponent == 31) {
    const unsigned quiet = mantissa ? 0x400000u : 0u;
    return __uint_as_float(sign | 0x7f800000u | mantissa << 13 | quiet);
  }
  return __uint_as_float(sign | (exponent + 112u) << 23 | mantissa << 13);
}

// Rounds to nearest, ties to even; any NaN becomes 0x7fff, as cvt.rn.f16.f32 makes it.
static inline unsigned short float_to_f16(float x) {
  const unsigned bits = __float_as_uint(x);
  const unsigned sign = bits >> 16 & 0x8000u;
  const unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x38800000u) {  // below 2^-14: the result is a multiple of 2^-24
    // Adding 0.5 leaves the sum's last bit at 2^-24, so the addition itself rounds.
    const float sum = __uint_as_float(magnitude) + 0.5f;
    return static_cast<unsigned short>(sign | (__float_as_uint(sum) - 0x3f000000u));
  }
  const unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<unsigned short>(sign | ((rounded >> 13) - (112u << 10)));
}

static inline unsigned int pack_bf16x2(float lo, float hi) {
  return static_cast<unsigned>(float_to_bf16(hi)) << 16 | float_to_bf16(lo);
}

static inline unsigned int pack_f16x2(float lo, float hi) {
  return static_cast<unsigned>(float_to_f16(hi)) << 16 | float_to_f16(lo);
}

// ex2.approx.ftz.f32: subnormal results are zero.
static inline float exp2_approx(float x) {
  const float y = exp2f(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}

static inline float log2_approx(float x) { return log2f(x); }

// Caches are not modelled.
__device__ __forceinline__ uint4 load_streaming(const uint4* address) { return *address; }
__device__ __forceinline__ void store_streaming(uint4* address, uint4 v) { *address = v; }

#endif

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

static inline float max_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fffffffu) : fmaxf(a, b); }
static inline float min_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fffffffu) : fminf(a, b); }

// In double, which holds the exact sum of the 16-bit values that can meet, so that it rounds once.
static inline float rounded_once(double sum) {
  const float nearest = static_cast<float>(sum);
  const unsigned bits = __float_as_uint(nearest);
  // Of a sum that is no float, keep an odd last bit: the second rounding cannot then take a tie.
  if (static_cast<double>(nearest) == sum || sum != sum) return nearest;
  const bool above = (static_cast<double>(nearest) > sum) == (sum > 0);
  return __uint_as_float((above ? bits - 1 : bits) | 1u);
}

static inline unsigned int add_bf16x2(unsigned int a, unsigned int b) {
  const auto half = [](unsigned x, unsigned y) {
    return static_cast<unsigned>(float_to_bf16(rounded_once(
        static_cast<double>(bf16_to_float(static_cast<unsigned short>(x))) +
        static_cast<double>(bf16_to_float(static_cast<unsigned short>(y))))));
  };
  return half(a >> 16, b >> 16) << 16 | half(a & 0xffffu, b & 0xffffu);
}

static inline unsigned int add_f16x2(unsigned int a, unsigned int b) {
  const auto half = [](unsigned x, unsigned y) {  // a float holds the exact sum of two halves
    return static_cast<unsigned>(float_to_f16(f16_to_float(static_cast<unsigned short>(x)) +
                                              f16_to_float(static_cast<unsigned short>(y))));
  };
  return half(a >> 16, b >> 16) << 16 | half(a & 0xffffu, b & 0xffffu);
}

// Lanes exchange two registers at a time; `dot` adds the product of two pairs to a sum.
template <class Dot>
static inline void mma_pairs(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int a2,
                             unsigned int a3, unsigned int b0, unsigned int b1, Dot dot) {
  typedef unsigned long long Pair;
  const unsigned lane = threadIdx.x & 31, g = lane / 4, t = lane % 4;
  const auto pair = [](unsigned lo, unsigned hi) { return static_cast<Pair>(hi) << 32 | lo; };
  for (unsigned k = 0; k < 4; k++) {
    const Pair upper = __shfl_sync(~0u, pair(a0, a2), 4 * g + k);
    const Pair lower = __shfl_sync(~0u, pair(a1, a3), 4 * g + k);
    for (unsigned j = 0; j < 2; j++) {
      const Pair column = __shfl_sync(~0u, pair(b0, b1), 4 * (2 * t + j) + k);
      c[j] = dot(upper, column, c[j]);
      c[2 + j] = dot(lower, column, c[2 + j]);
    }
  }
}

template <class Widen>
static inline void mma_16(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int a2,
                          unsigned int a3, unsigned int b0, unsigned int b1, Widen widen) {
  mma_pairs(c, a0, a1, a2, a3, b0, b1,
            [widen](unsigned long long a, unsigned long long b, float sum) {
              for (int i = 0; i < 64; i += 16)
                sum += widen(a >> i & 0xffffu) * widen(b >> i & 0xffffu);
              return sum;
            });
}

static inline void mma_bf16(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int a2,
                            unsigned int a3, unsigned int b0, unsigned int b1) {
  mma_16(c, a0, a1, a2, a3, b0, b1,
         [](unsigned long long x) { return bf16_to_float(static_cast<unsigned short>(x)); });
}

static inline void mma_f16(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int a2,
                           unsigned int a3, unsigned int b0, unsigned int b1) {
  mma_16(c, a0, a1, a2, a3, b0, b1,
         [](unsigned long long x) { return f16_to_float(static_cast<unsigned short>(x)); });
}

static inline unsigned int round_tf32(unsigned int x) {
  if ((x & 0x7fffffffu) > 0x7f800000u) return 0x7fffffffu;
  return (x & 0x7fffffffu) == 0x7f800000u ? x : (x + 0x1000u) & 0xffffe000u;
}

// Bits below those of tf32 are not read.
static inline void mma_tf32(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int a2,
                            unsigned int a3, unsigned int b0, unsigned int b1) {
  mma_pairs(c, a0, a1, a2, a3, b0, b1,
            [](unsigned long long a, unsigned long long b, float sum) {
              const auto value = [](unsigned long long x) {
                return __uint_as_float(static_cast<unsigned>(x) & 0xffffe000u);
              };
              sum += value(a) * value(b);
              return sum + value(a >> 32) * value(b >> 32);
            });
}

static inline unsigned int opaque(unsigned int x) { return x; }

// Caches are not modelled.
__device__ __forceinline__ uint4 load_streaming(const uint4* address) { return *address; }
__device__ __forceinline__ void store_streaming(uint4* address, uint4 v) { *address = v; }

// Copies arrive when their thread waits for them and not before, so that a missing wait shows.
static inline void copy_async(void* shared, const void* global, bool live) {
  gnnb_emu::Lane& self = *gnnb_emu::state.self;
  if (self.num_copies == gnnb_emu::kMaxCopies)
    GNNB_FAIL("copy_async: more than %d copies of a thread are under way", gnnb_emu::kMaxCopies);
  self.copies[self.num_copies++] = {shared, live ? global : nullptr, self.copy_group};
}
static inline void commit_copies() { ++gnnb_emu::state.self->copy_group; }
template <int PENDING> static inline void wait_copies() {
  gnnb_emu::Lane& self = *gnnb_emu::state.self;
  int left = 0;
  for (int i = 0; i < self.num_copies; i++) {
    const gnnb_emu::Copy copy = self.copies[i];
    if (copy.group + PENDING >= self.copy_group) {
      self.copies[left++] = copy;
    } else {
      uint4 value = {0, 0, 0, 0};
      if (copy.from) value = *static_cast<const uint4*>(copy.from);
      *static_cast<uint4*>(copy.to) = value;
    }
  }
  self.num_copies = left;
}

#endif

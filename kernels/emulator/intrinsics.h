// CUDA's device functions: shuffles, votes, barriers, atomics, bit and math functions.
#pragma once

#include <math.h>
#include <type_traits>

#include "scheduler.h"

namespace gnnb_emu {

template <typename To, typename From>
static inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

template <typename T>
static inline uint64_t to_word(T value) {
  uint64_t word = 0;
  memcpy(&word, &value, sizeof(T));
  return word;
}

template <typename T>
static inline T from_word(uint64_t word) {
  T value;
  memcpy(&value, &word, sizeof(T));
  return value;
}

// Reads by the rules of shfl.sync; `lanes` are those of the warp. A lane that did not take part
// gives poison, where the hardware gives something undefined.
static void compute_results(Lane* lanes, const Group& group) {
  uint64_t values[kWarp];
  uint64_t folded = 0;
  unsigned ballot = 0;
  bool first = true;
  for (unsigned left = group.arrived; left; left &= left - 1) {
    const int i = __builtin_ctz(left);
    const uint64_t v = lanes[i].value;
    values[i] = v;
    ballot |= (v != 0 ? 1u : 0u) << i;
    const bool less = static_cast<int32_t>(v) < static_cast<int32_t>(folded);
    switch (group.op) {
      case Op::kReduceAdd: folded += v; break;
      case Op::kReduceMin: folded = first || less ? v : folded; break;
      case Op::kReduceMax: folded = first || !less ? v : folded; break;
      case Op::kReduceUnsignedMin: folded = first || v < folded ? v : folded; break;
      case Op::kReduceUnsignedMax: folded = first || v > folded ? v : folded; break;
      case Op::kReduceAnd: folded = first ? v : folded & v; break;
      case Op::kReduceOr: folded |= v; break;
      case Op::kReduceXor: folded ^= v; break;
      default: break;
    }
    first = false;
  }
  for (unsigned left = group.arrived; left; left &= left - 1) {
    Lane& lane = lanes[__builtin_ctz(left)];
    switch (group.op) {
      case Op::kShuffle:
      case Op::kShuffleUp:
      case Op::kShuffleDown:
      case Op::kShuffleXor:
        lane.value = group.arrived >> lane.source & 1 ? values[lane.source] : kPoison;
        break;
      case Op::kAny: lane.value = ballot != 0; break;
      case Op::kAll: lane.value = ballot == group.arrived; break;
      case Op::kBallot: lane.value = ballot; break;
      case Op::kMatchAny: {
        unsigned same = 0;
        for (unsigned other = group.arrived; other; other &= other - 1)
          if (values[__builtin_ctz(other)] == values[&lane - lanes])
            same |= 1u << __builtin_ctz(other);
        lane.source = same;
        break;
      }
      default: lane.value = folded; break;
    }
  }
  if (group.op == Op::kMatchAny)
    for (unsigned left = group.arrived; left; left &= left - 1)
      lanes[__builtin_ctz(left)].value = lanes[__builtin_ctz(left)].source;
}

template <typename T>
static inline T shuffle(Op op, unsigned mask, T value, int amount, int width, Site site) {
  static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4,
                "shuffles take int, unsigned, long, long long, float or double");
  if (width < 1 || width > kWarp || (width & (width - 1)))
    GNNB_FAIL("%s at %s:%d: width is %d, not a power of two up to 32", op_name(op), site.file,
              site.line, width);
  const int lane = state.self_index % kWarp;
  const int begin = lane & ~(width - 1);  // this lane's segment
  int source = lane;
  switch (op) {
    case Op::kShuffle: source = begin + (amount & (width - 1)); break;
    case Op::kShuffleUp: source = lane - amount < begin ? lane : lane - amount; break;
    case Op::kShuffleDown: source = lane + amount >= begin + width ? lane : lane + amount; break;
    default: source = (lane ^ amount) >= begin + width ? lane : (lane ^ amount); break;
  }
  return from_word<T>(warp_collective(op, mask, to_word(value),
                                      static_cast<unsigned>(source) % kWarp, site));
}

}  // namespace gnnb_emu

#define GNNB_SITE_PARAMETERS const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define GNNB_SITE (::gnnb_emu::Site{file, line})

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                            GNNB_SITE_PARAMETERS) {
  return gnnb_emu::shuffle(gnnb_emu::Op::kShuffle, mask, value, source, width, GNNB_SITE);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               GNNB_SITE_PARAMETERS) {
  return gnnb_emu::shuffle(gnnb_emu::Op::kShuffleUp, mask, value, static_cast<int>(delta), width,
                           GNNB_SITE);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 GNNB_SITE_PARAMETERS) {
  return gnnb_emu::shuffle(gnnb_emu::Op::kShuffleDown, mask, value, static_cast<int>(delta), width,
                           GNNB_SITE);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                                GNNB_SITE_PARAMETERS) {
  return gnnb_emu::shuffle(gnnb_emu::Op::kShuffleXor, mask, value, lane_mask, width, GNNB_SITE);
}

static inline int __any_sync(unsigned mask, int predicate, GNNB_SITE_PARAMETERS) {
  return static_cast<int>(
      gnnb_emu::warp_collective(gnnb_emu::Op::kAny, mask, predicate != 0, 0, GNNB_SITE));
}
static inline int __all_sync(unsigned mask, int predicate, GNNB_SITE_PARAMETERS) {
  return static_cast<int>(
      gnnb_emu::warp_collective(gnnb_emu::Op::kAll, mask, predicate != 0, 0, GNNB_SITE));
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, GNNB_SITE_PARAMETERS) {
  return static_cast<unsigned>(
      gnnb_emu::warp_collective(gnnb_emu::Op::kBallot, mask, predicate != 0, 0, GNNB_SITE));
}
template <typename T>
static inline unsigned __match_any_sync(unsigned mask, T value, GNNB_SITE_PARAMETERS) {
  return static_cast<unsigned>(gnnb_emu::warp_collective(
      gnnb_emu::Op::kMatchAny, mask, gnnb_emu::to_word(value), 0, GNNB_SITE));
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, GNNB_SITE_PARAMETERS) {
  gnnb_emu::warp_collective(gnnb_emu::Op::kSyncWarp, mask, 0, 0, GNNB_SITE);
}
static inline void __syncthreads(GNNB_SITE_PARAMETERS) {
  gnnb_emu::block_barrier(gnnb_emu::Op::kSyncThreads, 0, GNNB_SITE);
}
static inline int __syncthreads_count(int predicate, GNNB_SITE_PARAMETERS) {
  return static_cast<int>(
      gnnb_emu::block_barrier(gnnb_emu::Op::kSyncThreadsCount, predicate != 0, GNNB_SITE));
}
static inline int __syncthreads_and(int predicate, GNNB_SITE_PARAMETERS) {
  return static_cast<int>(
      gnnb_emu::block_barrier(gnnb_emu::Op::kSyncThreadsAnd, predicate != 0, GNNB_SITE));
}
static inline int __syncthreads_or(int predicate, GNNB_SITE_PARAMETERS) {
  return static_cast<int>(
      gnnb_emu::block_barrier(gnnb_emu::Op::kSyncThreadsOr, predicate != 0, GNNB_SITE));
}

#define GNNB_REDUCE(NAME, TYPE, OP)                                                           \
  static inline TYPE NAME(unsigned mask, TYPE value, GNNB_SITE_PARAMETERS) {                  \
    return gnnb_emu::from_word<TYPE>(gnnb_emu::warp_collective(                               \
        gnnb_emu::Op::OP, mask, gnnb_emu::to_word(value), 0, GNNB_SITE));                     \
  }
GNNB_REDUCE(__reduce_add_sync, int, kReduceAdd)
GNNB_REDUCE(__reduce_add_sync, unsigned, kReduceAdd)
GNNB_REDUCE(__reduce_min_sync, int, kReduceMin)
GNNB_REDUCE(__reduce_min_sync, unsigned, kReduceUnsignedMin)
GNNB_REDUCE(__reduce_max_sync, int, kReduceMax)
GNNB_REDUCE(__reduce_max_sync, unsigned, kReduceUnsignedMax)
GNNB_REDUCE(__reduce_and_sync, unsigned, kReduceAnd)
GNNB_REDUCE(__reduce_or_sync, unsigned, kReduceOr)
GNNB_REDUCE(__reduce_xor_sync, unsigned, kReduceXor)
#undef GNNB_REDUCE

// Memory. Blocks and threads never run at the same time, so plain accesses are atomic; the lanes'
// order decides in which order they happen.
#define GNNB_ATOMIC(NAME, EXPRESSION)                                       \
  template <typename T>                                                     \
  static inline T NAME(T* address, typename std::common_type<T>::type value) { \
    const T old = *address;                                                 \
    *address = (EXPRESSION);                                                \
    return old;                                                             \
  }
GNNB_ATOMIC(atomicAdd, static_cast<T>(old + value))
GNNB_ATOMIC(atomicSub, static_cast<T>(old - value))
GNNB_ATOMIC(atomicMax, old < value ? value : old)
GNNB_ATOMIC(atomicMin, value < old ? value : old)
GNNB_ATOMIC(atomicAnd, static_cast<T>(old & value))
GNNB_ATOMIC(atomicOr, static_cast<T>(old | value))
GNNB_ATOMIC(atomicXor, static_cast<T>(old ^ value))
#undef GNNB_ATOMIC

template <typename T>
static inline T atomicExch(T* address, typename std::common_type<T>::type value) {
  gnnb_emu::yield_lane();
  const T old = *address;
  *address = value;
  return old;
}
template <typename T>
static inline T atomicCAS(T* address, typename std::common_type<T>::type expected,
                          typename std::common_type<T>::type value) {
  gnnb_emu::yield_lane();
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

template <typename T>
static inline T __ldg(const T* address) {
  return *address;
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __nanosleep(unsigned) { gnnb_emu::yield_lane(); }

// Bits.
static inline int __float_as_int(float x) { return gnnb_emu::bit_cast<int>(x); }
static inline unsigned __float_as_uint(float x) { return gnnb_emu::bit_cast<unsigned>(x); }
static inline float __int_as_float(int x) { return gnnb_emu::bit_cast<float>(x); }
static inline float __uint_as_float(unsigned x) { return gnnb_emu::bit_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return gnnb_emu::bit_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return gnnb_emu::bit_cast<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __clzll(long long x) {
  return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}

// min and max as CUDA overloads them.
#define GNNB_MIN_MAX(A, B, R)                                                                 \
  static inline R min(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); } \
  static inline R max(A a, B b) { return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); }
GNNB_MIN_MAX(int, int, int)
GNNB_MIN_MAX(unsigned, unsigned, unsigned)
GNNB_MIN_MAX(int, unsigned, unsigned)
GNNB_MIN_MAX(unsigned, int, unsigned)
GNNB_MIN_MAX(long, long, long)
GNNB_MIN_MAX(unsigned long, unsigned long, unsigned long)
GNNB_MIN_MAX(long long, long long, long long)
GNNB_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
GNNB_MIN_MAX(long long, unsigned long long, unsigned long long)
GNNB_MIN_MAX(unsigned long long, long long, unsigned long long)
#undef GNNB_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

// Math. Macros, because glibc declares functions called __expf and so on.
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float fdividef(float a, float b) { return a / b; }
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __fdividef(a, b) ((a) / (b))
#define __frcp_rn(x) (1.0f / (x))
#define __fsqrt_rn(x) sqrtf(x)
#define __fadd_rn(a, b) ((a) + (b))
#define __fmul_rn(a, b) ((a) * (b))
#define __fmaf_rn(a, b, c) fmaf(a, b, c)
#define __saturatef(x) fminf(fmaxf(x, 0.0f), 1.0f)
static inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
static inline int __float2int_rz(float x) { return static_cast<int>(x); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }

#define __trap() GNNB_FAIL("__trap() was called by thread (%u, %u, %u)", threadIdx.x, threadIdx.y, \
                           threadIdx.z)

// CUDA's built-in vector types, with the sizes and alignments of the real ones.
#pragma once

#define GNNB_VECTOR_TYPE(T, NAME, ALIGN2, ALIGN4)                                             \
  struct NAME##1 { T x; };                                                                    \
  struct alignas(ALIGN2) NAME##2 { T x, y; };                                                 \
  struct NAME##3 { T x, y, z; };                                                              \
  struct alignas(ALIGN4) NAME##4 { T x, y, z, w; };                                           \
  static inline NAME##1 make_##NAME##1(T x) { return {x}; }                                   \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                           \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                   \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

GNNB_VECTOR_TYPE(signed char, char, 2, 4)
GNNB_VECTOR_TYPE(unsigned char, uchar, 2, 4)
GNNB_VECTOR_TYPE(short, short, 4, 8)
GNNB_VECTOR_TYPE(unsigned short, ushort, 4, 8)
GNNB_VECTOR_TYPE(int, int, 8, 16)
GNNB_VECTOR_TYPE(unsigned int, uint, 8, 16)
GNNB_VECTOR_TYPE(long long, longlong, 16, 16)
GNNB_VECTOR_TYPE(unsigned long long, ulonglong, 16, 16)
GNNB_VECTOR_TYPE(float, float, 8, 16)
GNNB_VECTOR_TYPE(double, double, 16, 16)
#undef GNNB_VECTOR_TYPE

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
      : x(x_), y(y_), z(z_) {}
};

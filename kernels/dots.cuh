// Dot products of row fragments over the lanes of a head, and sums of two rows; 16-bit rows on
// tensor cores and in packed arithmetic, which takes fewer instructions.
//
// Tensor cores: lane 4 g + t of a warp gives mma.m16n8k16 its 16 bytes of a moving row, one half in row g of
// the first matrix and the other in row g + 8, and 8 bytes of a fixed row in column g of the second. A
// product of row and column is then a dot product over the four lanes of quad g, which never mixes
// with another quad, so that quads may belong to different heads and tasks. Only products of a quad
// with its own columns are used. Products and sums are float32. Packed sums round to the storage type,
// as the host's layers do.
#pragma once
#include "common.cuh"

namespace gnnb {

// Whether a layout's dot products run on tensor cores: whole quads of 16-bit values in a head.
template <class S> constexpr bool PACKED = S::VECTOR && sizeof(typename S::T) == 2 && S::LANES >= 4;

template <typename T> struct Packed;
template <> struct Packed<bf16> {
    static __device__ __forceinline__ unsigned add(unsigned a, unsigned b) { return add_bf16x2(a, b); }
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint4& a, const uint2& b) {
        mma_bf16(c, a.x, a.y, a.z, a.w, b.x, b.y);
    }
};
template <> struct Packed<f16> {
    static __device__ __forceinline__ unsigned add(unsigned a, unsigned b) { return add_f16x2(a, b); }
    static __device__ __forceinline__ void multiply(float (&c)[4], const uint4& a, const uint2& b) {
        mma_f16(c, a.x, a.y, a.z, a.w, b.x, b.y);
    }
};

// A row that many rows are multiplied with. `set` takes a fragment, which every group may have its own of;
// `dot` gives this lane's share of its product with another, over the lanes of a head.
template <class S, bool ON_TENSOR_CORES = PACKED<S>> struct Fixed {
    Raw<S> row;
    __device__ __forceinline__ void set(const Raw<S>& raw, int) { row = raw; }
    __device__ __forceinline__ float dot(const Raw<S>& moving, int) const {
        float a[S::VALUES], b[S::VALUES], sum = 0.f;
        row.unpack(b);
        moving.unpack(a);
        #pragma unroll
        for (int i = 0; i < S::VALUES; i++) sum = fmaf(b[i], a[i], sum);
        return sum;
    }
};
template <class S> struct Fixed<S, true> {
    uint2 half[S::ACCESSES][2];
    __device__ __forceinline__ void set(const Raw<S>& raw, int) {
        #pragma unroll
        for (int v = 0; v < S::ACCESSES; v++) {
            half[v][0] = make_uint2(raw.word[v].x, raw.word[v].z);
            half[v][1] = make_uint2(raw.word[v].y, raw.word[v].w);
        }
    }
    // The halves of quad g's product are elements (g, g) and (g + 8, g) of two products.
    __device__ __forceinline__ float dot(const Raw<S>& moving, int lane) const {
        const int quad = lane / 4;
        const bool owner = lane % 4 == quad / 2, odd = quad & 1;
        float first[4] = {0.f, 0.f, 0.f, 0.f}, second[4] = {0.f, 0.f, 0.f, 0.f};
        #pragma unroll
        for (int v = 0; v < S::ACCESSES; v++) {
            Packed<typename S::T>::multiply(first, moving.word[v], half[v][0]);
            Packed<typename S::T>::multiply(second, moving.word[v], half[v][1]);
        }
        return owner ? (odd ? first[1] : first[0]) + (odd ? second[3] : second[2]) : 0.f;
    }
};

// The same for a row that is equal in all groups, of which there are several: at most four quads differ, so
// that both halves find room in the eight columns of one product.
template <class S, bool REPEATED = (PACKED<S> && S::GROUP <= 16)> struct FixedParam : Fixed<S> {};
template <class S> struct FixedParam<S, true> {
    uint2 column[S::ACCESSES];
    // Column 2 j is the first half of quad j, column 2 j + 1 its second.
    __device__ __forceinline__ void set(const Raw<S>& raw, int lane) {
        const int from = lane / 8 * 4 + lane % 4;
        const bool second = lane / 4 & 1;
        #pragma unroll
        for (int v = 0; v < S::ACCESSES; v++) {
            const unsigned x = __shfl_sync(ALL_LANES, raw.word[v].x, from);
            const unsigned y = __shfl_sync(ALL_LANES, raw.word[v].y, from);
            const unsigned z = __shfl_sync(ALL_LANES, raw.word[v].z, from);
            const unsigned w = __shfl_sync(ALL_LANES, raw.word[v].w, from);
            column[v] = second ? make_uint2(y, w) : make_uint2(x, z);
        }
    }
    __device__ __forceinline__ float dot(const Raw<S>& moving, int lane) const {
        float c[4] = {0.f, 0.f, 0.f, 0.f};
        #pragma unroll
        for (int v = 0; v < S::ACCESSES; v++)
            Packed<typename S::T>::multiply(c, moving.word[v], column[v]);
        return lane % 4 == lane / 4 % 4 ? c[0] + c[3] : 0.f;
    }
};

// a + b of 16-bit rows, rounded to the storage type.
template <class S> __device__ __forceinline__ Raw<S> packed_sum(const Raw<S>& a, const Raw<S>& b) {
    using P = Packed<typename S::T>;
    Raw<S> sum;
    #pragma unroll
    for (int v = 0; v < S::ACCESSES; v++)
        sum.word[v] = make_uint4(P::add(a.word[v].x, b.word[v].x), P::add(a.word[v].y, b.word[v].y),
                                 P::add(a.word[v].z, b.word[v].z), P::add(a.word[v].w, b.word[v].w));
    return sum;
}

template <class S> __device__ __forceinline__ Raw<S> packed_abs(const Raw<S>& a) {
    constexpr unsigned MASK = 0x7fff7fffu;
    Raw<S> result;
    #pragma unroll
    for (int v = 0; v < S::ACCESSES; v++)
        result.word[v] = make_uint4(a.word[v].x & MASK, a.word[v].y & MASK,
                                    a.word[v].z & MASK, a.word[v].w & MASK);
    return result;
}

// a + b in float32; of packed layouts rounded as packed_sum does.
template <class S>
__device__ __forceinline__ void unpacked_sum(const Raw<S>& a, const Raw<S>& b, float (&sum)[S::VALUES]) {
    if constexpr (PACKED<S>) {
        packed_sum(a, b).unpack(sum);
    } else {
        float y[S::VALUES];
        a.unpack(sum);
        b.unpack(y);
        #pragma unroll
        for (int i = 0; i < S::VALUES; i++) sum[i] += y[i];
    }
}

}  // namespace gnnb

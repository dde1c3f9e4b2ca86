// Weighted sums of a tile's gathered rows, for the 16 rows of a window: the second product of a pass.
// A lane loads its part of four rows by wide accesses and pairs their values in registers, since a
// product wants values of two rows in one word. Mapping: block_sparse.cuh.
#pragma once
#include "block_sparse.cuh"

namespace gnnb {

// Part of the four rows of a tile that a lane weights.
template <class H> struct Segment {
    Words<H::ACCESS> row[4];
    __device__ __forceinline__ void load(
        const Rows& table, const Tile& tile, const Spot& at, int segment) {
        const int offset = (segment * 8 + at.g) * H::ACCESS;
        #pragma unroll
        for (int r = 0; r < 4; r++)
            row[r] = load_words<H::ACCESS>(table[tile.column(r / 2, r)] + offset);
    }
};

// Sums of a window's rows. Of segment s a lane has the 2 * VALUES values from first(s) on of row g, in
// elements 0 and then 1, and of row g + 8, in elements 2 and then 3.
template <class H> struct Sums {
    using T = typename H::T;
    using Core = TensorCore<T>;
    static constexpr int K = H::VALUES, RUN = 2 * K;
    float x[H::SEGMENTS][K][4];

    __device__ __forceinline__ void clear() {
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++)
            #pragma unroll
            for (int k = 0; k < K; k++)
                #pragma unroll
                for (int i = 0; i < 4; i++) x[s][k][i] = 0.f;
    }
    __device__ __forceinline__ void scale(float upper, float lower) {
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++)
            #pragma unroll
            for (int k = 0; k < K; k++)
                #pragma unroll
                for (int i = 0; i < 4; i++) x[s][k][i] *= i < 2 ? upper : lower;
    }
    __device__ __forceinline__ bool any_nan() const {
        bool found = false;
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++)
            #pragma unroll
            for (int k = 0; k < K; k++)
                #pragma unroll
                for (int i = 0; i < 4; i++) found |= x[s][k][i] != x[s][k][i];
        return found;
    }

    // Add weighted rows of a tile. Weights are rounded to the storage type, those of no edge are 0; a row
    // with an infinity or NaN spoils the sums of the whole window. `ahead`: segment 0 of the rows.
    __device__ __forceinline__ void add(
        const Entries& weight, const Rows& table, const Tile& tile, const Spot& at,
        const Segment<H>& ahead) {
        Segment<H> part = ahead;
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++) {
            if (s > 0) part.load(table, tile, at, s);
            if constexpr (sizeof(T) == 2) {
                const float (&w)[2][4] = weight.x;
                const unsigned a0 = Core::pack(w[0][0], w[0][1]), a1 = Core::pack(w[0][2], w[0][3]);
                const unsigned a2 = Core::pack(w[1][0], w[1][1]), a3 = Core::pack(w[1][2], w[1][3]);
                #pragma unroll
                for (int k = 0; k < K; k++)
                    Core::multiply(x[s][k], a0, a1, a2, a3, couple(part.row[0], part.row[1], k),
                                   couple(part.row[2], part.row[3], k));
            } else {
                #pragma unroll
                for (int n = 0; n < 2; n++) {
                    unsigned a[4];
                    #pragma unroll
                    for (int i = 0; i < 4; i++) a[i] = Core::operand(__float_as_uint(weight.x[n][i]));
                    #pragma unroll
                    for (int k = 0; k < K; k++)
                        Core::multiply(x[s][k], a[0], a[2], a[1], a[3],
                                       Core::operand(part.row[2 * n].word[k]),
                                       Core::operand(part.row[2 * n + 1].word[k]));
                }
            }
        }
    }
    // Value k of two rows of 16 bits in one word.
    static __device__ __forceinline__ unsigned couple(
        const Words<H::ACCESS>& a, const Words<H::ACCESS>& b, int k) {
        const unsigned lo = a.word[k / 2], hi = b.word[k / 2];
        return k & 1 ? lo >> 16 | (hi & 0xffff0000u) : (lo & 0xffffu) | hi << 16;
    }

    // The same over the edges alone, one column at a time.
    __device__ void add_exact(
        const Entries& weight, const Rows& table, const Tile& tile, const Spot& at) {
        #pragma unroll 1
        for (int c = 0; c < TILE; c++) {
            const int n = c / 8, from = at.lane / 4 * 4 + c % 8 / 2;
            const bool odd = c & 1;
            float w[2];
            bool live[2];
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const float even_one = n ? weight.x[1][2 * half] : weight.x[0][2 * half];
                const float odd_one = n ? weight.x[1][2 * half + 1] : weight.x[0][2 * half + 1];
                w[half] = __shfl_sync(ALL_LANES, odd ? odd_one : even_one, from);
                live[half] = __shfl_sync(ALL_LANES, tile.mask, from) >> (4 * n + 2 * half + odd) & 1;
            }
            const int2 ids = n ? tile.pair[1] : tile.pair[0];
            const int id = __shfl_sync(ALL_LANES, odd ? ids.y : ids.x, from);
            const T* row = reinterpret_cast<const T*>(table[id]);
            #pragma unroll
            for (int s = 0; s < H::SEGMENTS; s++)
                #pragma unroll
                for (int k = 0; k < K; k++)
                    #pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float value = Storage<T>::get(row[first(s, at) + K * (i & 1) + k]);
                        if (live[i / 2]) x[s][k][i] = fmaf(w[i / 2], value, x[s][k][i]);
                    }
        }
    }

    static __device__ __forceinline__ int first(int segment, const Spot& at) {
        return segment * 8 * K + at.t * RUN;
    }

    // Write row g or, with half = 1, row g + 8, in the storage type.
    __device__ __forceinline__ void store(T* row, int half, const Spot& at) const {
        constexpr int PER16 = Storage<T>::PER16;
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++) {
            float run[RUN < PER16 ? PER16 : RUN];
            unpack(s, half, run);
            T* to = row + first(s, at);
            if constexpr (RUN < PER16) {
                #pragma unroll
                for (int k = RUN; k < PER16; k++) run[k] = 0.f;
                const uint4 word = Storage<T>::pack(run);
                *reinterpret_cast<uint2*>(to) = make_uint2(word.x, word.y);
            } else {
                #pragma unroll
                for (int k = 0; k < RUN; k += PER16)
                    store_streaming(reinterpret_cast<uint4*>(to + k), Storage<T>::pack(run + k));
            }
        }
    }
    // The same as float32.
    __device__ __forceinline__ void store_partial(float* row, int half, const Spot& at) const {
        #pragma unroll
        for (int s = 0; s < H::SEGMENTS; s++) {
            float run[RUN];
            unpack(s, half, run);
            #pragma unroll
            for (int k = 0; k < RUN; k += 4)
                *reinterpret_cast<float4*>(row + first(s, at) + k) =
                    make_float4(run[k], run[k + 1], run[k + 2], run[k + 3]);
        }
    }
    __device__ __forceinline__ void unpack(int s, int half, float* run) const {
        #pragma unroll
        for (int k = 0; k < RUN; k++) run[k] = x[s][k % K][2 * half + k / K];
    }
};

// Write a window's sums into result number `which`, or its partials.
template <class H>
__device__ __forceinline__ void store_window(
    const BlockArgs& args, int which, const BlockTask& own, int head, const Spot& at,
    const Sums<H>& sums) {
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.g + 8 * half;
        const i64 offset = own.place(args, row, head) * H::DIM;
        if (own.task.slot >= 0) sums.store_partial(args.partial[which] + offset, half, at);
        else if (own.first + row < args.num_rows)
            sums.store(static_cast<typename H::T*>(args.out[which]) + offset, half, at);
    }
}

}  // namespace gnnb

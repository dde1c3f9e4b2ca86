// Merge of the partials of split windows: one of the results of the passes in block_attention.cuh.
//
// Mapping: split_rows.cuh, where what is split is a window, of 16 rows of all heads side by side; a lane
// has four columns. Bytes: each partial is read once. Determinism: the order depends on the number of
// slots alone; no atomics.
#pragma once
#include "block_sparse.cuh"
#include "split_rows.cuh"

namespace gnnb {

struct BlockMergeArgs {
    const int* heavy_windows;
    const int* heavy_ptr;
    i64 count;                        // split windows
    const unsigned* occupied;         // [windows] bits of the rows that have edges
    i64 num_rows, heads, dim;
    const float* partial;             // [slots, 16, H, D]
    void* out;                        // [rows, H, D] of T
    const float2* partial_stats;      // [slots, 16, H] (max, sum), of softmax
    float* lse;                       // [rows, H], of softmax
};

// A lane's columns of some slots: their sum, or their sum relative to the largest maximum.
template <bool SOFTMAX> struct WindowPart {
    float top, sum, x[4];

    __device__ __forceinline__ void clear() {
        top = LOWEST;
        sum = 0.f;
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = 0.f;
    }
    __device__ __forceinline__ void merge(const WindowPart& other) {
        float mine = 1.f, others = 1.f;
        if constexpr (SOFTMAX) {
            const float next = fmaxf(top, other.top);
            mine = exp2_approx(top - next);
            others = exp2_approx(other.top - next);
            top = next;
            sum = sum * mine + other.sum * others;
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = x[i] * mine + other.x[i] * others;
    }
};

template <typename T, bool SOFTMAX> __device__ __forceinline__ void block_merge(const BlockMergeArgs& args) {
    using Part = WindowPart<SOFTMAX>;
    const i64 width = args.heads * args.dim, window = TILE * width;
    const int lane = threadIdx.x & (WARP - 1);
    for (i64 tile = blockIdx.y; tile * (WARP * 4) < window; tile += gridDim.y) {
        const i64 column = (tile * WARP + lane) * 4;
        const bool inside = column < window;
        const int row = (int)(column / width);
        const i64 stat = column / args.dim;                       // row * heads + head
        merge_split_rows<Part>(
            args.heavy_ptr, args.count, blockIdx.x, gridDim.x, MERGE_ALONE,
            [&](int begin, int end) {
                Part all;
                all.clear();
                #pragma unroll 4
                for (int slot = begin; slot < end; slot++) {
                    if (!inside) break;
                    Part one;
                    const float4 x =
                        __ldg(reinterpret_cast<const float4*>(args.partial + slot * window + column));
                    one.x[0] = x.x; one.x[1] = x.y; one.x[2] = x.z; one.x[3] = x.w;
                    if constexpr (SOFTMAX) {
                        const float2 s = __ldg(args.partial_stats + slot * (TILE * args.heads) + stat);
                        one.top = s.x;
                        one.sum = s.y;
                    }
                    all.merge(one);
                }
                return all;
            },
            [&](Part all, i64 which) {
                const i64 index = args.heavy_windows[which], first = index * TILE;
                if (!inside || first + row >= args.num_rows) return;
                if constexpr (SOFTMAX) {
                    // As a row that is not split: 0 without edges, NaN where every logit is -inf.
                    const bool empty = !(args.occupied[index] >> row & 1);
                    const float inverse = empty ? 0.f : 1.f / all.sum;
                    #pragma unroll
                    for (int i = 0; i < 4; i++) all.x[i] *= inverse;
                    if (column % args.dim == 0)
                        args.lse[first * args.heads + stat] =
                            empty ? 0.f : all.top + log2_approx(all.sum);
                }
                T* to = static_cast<T*>(args.out) + first * width + column;
                #pragma unroll
                for (int i = 0; i < 4; i++) to[i] = Storage<T>::put(all.x[i]);
            });
    }
}

}  // namespace gnnb

// Sums of the rows that the edges of a row name, over tiles on tensor cores: plain, weighted by a value of
// the edge, and divided by a number of the row. Mapping, bytes and determinism: block_sparse.cuh; what is a
// head there is a piece of a row's columns here.
//
// Rows of 16 bits are multiplied as they are, with weights of the same type: products are exact, sums
// float32. A pass that ends with a NaN runs its task again over the edges alone: in a product of tiles, an
// infinity or NaN of a row that is no neighbour meets a weight of 0.
#pragma once
#include "block_sums.cuh"

namespace gnnb {

// Tables: gathered rows. `bias`: weights, where H::BIAS, one table for all pieces if num_tiles is 0.
// `lse`: what rows are multiplied with, or null.
template <class H, bool EXACT>
__device__ __forceinline__ void window_sum(
    const BlockArgs& args, const BlockTask& own, int head, const Spot& at, Sums<H>& sums) {
    const Rows table = head_rows<H>(args.column_table[0], args, head);
    const Tiles tiles(args, own.task.begin, at);
    const int last = own.task.count - 1;
    Tile tile;
    Segment<H> segment;
    LogitTerm<H> weight;
    const auto load = [&](int index) {
        tile.load(tiles, index, at);
        weight.load(args, own.task.begin + index, head, at);
        if (!EXACT) segment.load(table, tile, at, 0);
    };
    sums.clear();
    load(0);
    #pragma unroll 1
    for (int index = 0; index <= last; index++) {
        const Tile now = tile;
        const Segment<H> part = segment;
        Entries w;
        #pragma unroll
        for (int n = 0; n < 2; n++)
            #pragma unroll
            for (int i = 0; i < 4; i++)
                w.x[n][i] = now.has(n, i) ? (H::BIAS ? weight.plus(n, i, 0.f) : 1.f) : 0.f;
        load(min(index + 1, last));
        if (EXACT) sums.add_exact(w, table, now, at);
        else sums.add(w, table, now, at, part);
    }
}

template <class H> __device__ __forceinline__ void block_sum(const BlockArgs& args) {
    const Spot at;
    const BlockTask own(args);
    if (!own.exists) return;
    const int head = blockIdx.y;
    Sums<H> sums;
    sums.clear();
    if (own.task.count > 0) {
        window_sum<H, false>(args, own, head, at, sums);
        if (__any_sync(ALL_LANES, sums.any_nan())) window_sum<H, true>(args, own, head, at, sums);
    }
    if (args.lse != nullptr) {
        float factor[2];
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = own.first + at.g + 8 * half;
            factor[half] = row < args.num_rows ? __ldg(args.lse + row) : 0.f;
        }
        sums.scale(factor[0], factor[1]);
    }
    store_window(args, 0, own, head, at, sums);
}

}  // namespace gnnb

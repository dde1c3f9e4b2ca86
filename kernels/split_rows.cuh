// Merge of what the tasks of split rows left, whatever it is.
//
// Mapping. A block of eight warps owns eight split rows. A warp merges a row of few slots alone; for
// the others all warps of the block take a contiguous run of the slots each, combined in warp order
// through shared memory. The rows of a block lie far apart in the list, since hubs are often
// neighbours. Determinism: the order depends on the number of slots alone; no atomics.
#pragma once
#include "common.cuh"

namespace gnnb {

constexpr int MERGE_WARPS = 8;                                        // and split rows a block
constexpr int MERGE_ALONE = 16;                                       // slots a warp merges alone

// The rows of block number `block` of `blocks`; all threads of the block take part.
// State: `merge(other)`, for a state of later slots. gather(begin, end): this lane's state of these
// slots. store(state, which): called on every lane of one warp for split row number `which`.
template <class State, class Gather, class Store>
__device__ __forceinline__ void merge_split_rows(
    const int* heavy_ptr, i64 count, i64 block, i64 blocks, int alone, Gather gather, Store store) {
    __shared__ State shared[MERGE_WARPS][WARP];
    __shared__ bool together[MERGE_WARPS];
    const int lane = threadIdx.x & (WARP - 1), warp = threadIdx.x / WARP;
    const i64 mine = warp * blocks + block;
    int begin = 0, end = 0;
    if (mine < count) {
        begin = heavy_ptr[mine];
        end = heavy_ptr[mine + 1];
    }
    if (lane == 0) together[warp] = end - begin > alone;
    __syncthreads();
    if (end > begin && !together[warp]) store(gather(begin, end), mine);
    #pragma unroll 1
    for (int other = 0; other < MERGE_WARPS; other++) {
        if (!together[other]) continue;
        const i64 which = other * blocks + block;
        const int first = heavy_ptr[which], many = heavy_ptr[which + 1] - first;
        State state = gather(first + (int)((i64)many * warp / MERGE_WARPS),
                             first + (int)((i64)many * (warp + 1) / MERGE_WARPS));
        shared[warp][lane] = state;
        __syncthreads();
        if (warp == 0) {
            for (int w = 1; w < MERGE_WARPS; w++) state.merge(shared[w][lane]);
            store(state, which);
        }
        __syncthreads();
    }
    __syncthreads();
}

}  // namespace gnnb

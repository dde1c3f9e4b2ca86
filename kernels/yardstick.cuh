// The yardstick: a balanced gather-and-sum of one row an edge from one or two tables.
//
// It does nothing but read the neighbour rows, so its time is the least that a kernel which
// reads each neighbour row once can take. A warp owns a task (a chunk of one row); rows of
// several chunks write one partial a chunk, which nobody merges.
#pragma once
#include "common.cuh"

namespace gnnb {

struct YardstickArgs {
    const int4* tasks;
    i64 num_tasks;
    const int* indices;
    const void* table[2];      // [sources, WIDTH] of T; the second is unused with one table
    float* out;                // [rows, WIDTH]
    float* partial;            // [slots, WIDTH]
};

// WIDTH values a row, a power of two whose bytes are a multiple of 16.
template <typename T, int WIDTH, int TABLES>
__device__ __forceinline__ void gather_sum(const YardstickArgs& args) {
    constexpr int PER16 = Storage<T>::PER16;
    constexpr int WORDS = WIDTH / PER16;                        // 16-byte words a row
    constexpr int LANES = WORDS < WARP ? WORDS : WARP;          // lanes an edge
    constexpr int EDGES = WARP / LANES;                         // edges side by side
    constexpr int EACH = WORDS / LANES;                         // words a lane of one row
    constexpr int LOADS = EACH * TABLES;
    constexpr int DEPTH = LOADS >= 4 ? 1 : 4 / LOADS;           // edges in flight a lane
    const i64 index = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (index >= args.num_tasks) return;
    const int lane = threadIdx.x % WARP, word = lane % LANES, edge = lane / LANES;
    const Task task = load_task(args.tasks, index);
    const int* neighbours = args.indices + task.begin;

    float sum[EACH * PER16] = {};
    #pragma unroll 1
    for (int first = 0; first < task.count; first += WARP) {
        const int here = min(WARP, task.count - first);
        const int mine = __ldg(neighbours + first + min(lane, here - 1));
        #pragma unroll 1                       // registers buy more warps here than loads a lane
        for (int e = 0; e < here; e += EDGES * DEPTH) {
            uint4 row[DEPTH][LOADS];
            #pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                const int position = e + d * EDGES + edge;
                const i64 source = __shfl_sync(ALL_LANES, mine, min(position, here - 1));
                const i64 at = source * WORDS + word;
                #pragma unroll
                for (int l = 0; l < LOADS; l++) {
                    const uint4* table = static_cast<const uint4*>(args.table[l / EACH]);
                    row[d][l] = position < here
                        ? __ldg(table + at + (l % EACH) * LANES)
                        : make_uint4(0, 0, 0, 0);
                }
            }
            #pragma unroll
            for (int d = 0; d < DEPTH; d++)
                #pragma unroll
                for (int l = 0; l < LOADS; l++) {
                    float value[PER16];
                    Storage<T>::unpack(row[d][l], value);
                    #pragma unroll
                    for (int i = 0; i < PER16; i++) sum[(l % EACH) * PER16 + i] += value[i];
                }
        }
    }
    #pragma unroll
    for (int offset = LANES; offset < WARP; offset <<= 1)
        #pragma unroll
        for (int i = 0; i < EACH * PER16; i++)
            sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], offset);
    if (edge != 0) return;
    float* to = task.slot < 0 ? args.out + (i64)task.row * WIDTH
                              : args.partial + (i64)task.slot * WIDTH;
    #pragma unroll
    for (int w = 0; w < EACH; w++)
        #pragma unroll
        for (int i = 0; i < PER16; i += 4)
            *reinterpret_cast<float4*>(to + (w * LANES + word) * PER16 + i) = make_float4(
                sum[w * PER16 + i], sum[w * PER16 + i + 1],
                sum[w * PER16 + i + 2], sum[w * PER16 + i + 3]);
}

}  // namespace gnnb

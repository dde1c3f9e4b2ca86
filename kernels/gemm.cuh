// What the products of a typed linear share: lists of tiles, and stages of shared memory that are filled in
// the background. The product of rows is in typed_linear.cuh, the gradient of the weights in weight_grad.cuh.
#pragma once
#include "tensor_core.cuh"

namespace gnnb {

constexpr int STAGES = 3;                   // of shared memory: one is used, two are on their way
constexpr int PIECE = 16;                   // bytes that a thread copies at once
constexpr int GEMM_BLOCK = 128;             // threads: four warps

// How numbers are multiplied: on tensor cores in their own type (float32: rounded to tf32), or as float32.
enum Precision { EXACT, TENSOR };

// Places of one segment (gnn_backend/runtime/row_tiles.py writes them); none in a tile of padding.
struct RowTile {
    int segment, first, count;
    __device__ __forceinline__ RowTile(const int4* tiles, unsigned index) {
        const int4 packed = __ldg(tiles + index);
        segment = packed.x, first = packed.y, count = packed.z;
    }
};

// The number that a list has at a place; without a list the place itself.
__device__ __forceinline__ int listed(const int* list, int place) {
    return list == nullptr ? place : __ldg(list + place);
}

// Bring one piece of a row into shared memory: `live` values of it, zeros for the others. ALIGNED: a row
// begins at a multiple of 16 bytes and has whole pieces.
template <typename T, bool ALIGNED>
__device__ __forceinline__ void bring(char* to, const T* from, int live) {
    if constexpr (ALIGNED) {
        copy_async(to, from, live > 0);
    } else {
        #pragma unroll
        for (int i = 0; i < Storage<T>::PER16; i++)
            reinterpret_cast<T*>(to)[i] = i < live ? from[i] : Storage<T>::put(0.f);
    }
}

}  // namespace gnnb

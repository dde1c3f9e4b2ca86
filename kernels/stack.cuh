// Tensors of one shape, each with memory of its own, into one buffer: those of a wrapper's layers, one a
// relation. The list of their addresses is made once, and the launches do not grow with their number.
//
// A thread owns every (gridDim.x * blockDim.x)-th word of a tensor, a row of the grid every gridDim.y-th tensor.
// Bytes read and written: each tensor once. Every word has one writer: equal inputs give equal bits.
#pragma once
#include "common.cuh"

namespace gnnb {

struct StackArgs {
    const i64* addresses;      // [count]
    void* out;                 // [count, words]
    i64 count, words;          // words of a tensor
};

template <typename Word>
__device__ __forceinline__ void stack(const StackArgs& args) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 item = blockIdx.y; item < args.count; item += gridDim.y) {
        const Word* from = reinterpret_cast<const Word*>(__ldg(args.addresses + item));
        Word* to = static_cast<Word*>(args.out) + item * args.words;
        for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < args.words; i += step)
            to[i] = from[i];
    }
}

}  // namespace gnnb

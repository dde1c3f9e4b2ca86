// Runs CUDA C++ kernels on the host. g++ reads this file before a kernel's source (-include).
//
// How it works
//   gnn_backend/runtime/emulator.py preprocesses the source with this file in front, rewrites every
//   `__shared__` declaration (below), and compiles the result to a shared library, in which each
//   GNNB_ENTRY is an exported function that runs a whole grid.
//   Blocks run one after another. Each thread of a block is a fiber: it has its own stack and runs
//   until it reaches a barrier or a warp primitive, where another ready thread goes on.
//     fiber.h        stacks and the context switch
//     scheduler.h    which thread runs, warp collectives, barriers, deadlock reports
//     launch.h       shared memory, the loop over blocks, GNNB_ENTRY
//     intrinsics.h   CUDA's device functions
//     vector_types.h float4, dim3 and the like
//     ptx.cuh        host versions of the functions in kernels/ptx.cuh
//
// Shared memory
//   `__shared__ float tile[4][32];` becomes
//       static ::gnnb_emu::Shared<float [4][32]> tile_storage; auto& tile = tile_storage.get();
//   so that every variable is an allocation of its own, known to the sanitizers and filled with NaN
//   before each block. `extern __shared__ T name[];` names the dynamic memory of the launch.
//
// What it checks
//   Lanes run in ascending, descending or random order, so that a result that depends on an order
//   which nothing enforces shows. Reading a lane that takes no part in a shuffle gives NaN. A mask
//   without its caller, a barrier or primitive that some lane never reaches, and two barriers met by
//   one block are errors that name kernel, block and lanes. Blocks with more threads than
//   GNNB_ENTRY's bound and argument structs of the wrong size are refused.
//
// What it cannot show
//   Races between threads that do not meet in a collective in between (a lane is never interrupted
//   elsewhere), memory-ordering bugs, and races between blocks. Warps do not execute in lockstep.
//
// To add a CUDA feature
//   A function of one thread: define it in intrinsics.h (as a macro where glibc has the name).
//   A warp primitive: add an Op in scheduler.h with its name, let compute_results in intrinsics.h
//   give each lane its result, and call warp_collective. PTX: a function in kernels/ptx.cuh and its
//   twin in emulator/ptx.cuh. Then test it in tests/emulator.
#pragma once

#define GNNB_EMULATOR 1

#include "intrinsics.h"
#include "launch.h"

static const int warpSize = 32;

#define __global__ static
#define __device__
#define __host__
#define __constant__ static const
// __shared__ is left to emulator.py.
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__

#include "ptx.cuh"

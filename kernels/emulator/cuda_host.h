// Runs CUDA C++ kernels on the host: force-included by g++ before a kernel's source.
#pragma once

#define GNNB_EMULATOR 1

#include "intrinsics.h"
#include "launch.h"

static const int warpSize = 32;

#define __global__ static
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__

#include "ptx.cuh"

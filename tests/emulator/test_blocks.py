"""Kernels that are right must give the right result, whatever the order of the lanes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gnn_backend import config
from gnn_backend.runtime import emulator
from tests.emulator.support import ORDERS, launch

REDUCTION = r"""
struct Args { const float* x; float* out; long long n; };

template <int WARPS>
__device__ __forceinline__ float block_sum(float v) {
  __shared__ float part[WARPS];
  #pragma unroll
  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0.f;
  for (int w = 0; w < WARPS; ++w) v += part[w];
  __syncthreads();
  return v;
}

__device__ __forceinline__ void sums(const Args& args) {
  for (int round = 0; round < 3; ++round) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const float x = i < args.n ? __ldg(args.x + i) * (round + 1) : 0.f;
    const float total = block_sum<4>(x);
    if (threadIdx.x == 0) args.out[blockIdx.x * 3 + round] = total;
  }
}
GNNB_ENTRY(sums, Args, 128, sums(args))
"""


@pytest.mark.parametrize("order", ORDERS)
def test_block_reduction(order: str) -> None:
    x = torch.arange(1000, dtype=torch.float32)
    out = torch.zeros(8, 3)
    launch(REDUCTION, "sums", 128, x, out, 1000, grid=8, order=order)
    padded = torch.nn.functional.pad(x, (0, 24)).view(8, 128).sum(1)
    assert torch.equal(out, padded[:, None] * torch.tensor([1.0, 2.0, 3.0]))


PLACES = r"""
struct Args { int* out; };
GNNB_ENTRY(places, Args, 1024,
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  int* const out = args.out + 8 * (block * threads + thread);
  out[0] = threadIdx.x; out[1] = threadIdx.y; out[2] = threadIdx.z;
  out[3] = blockIdx.x; out[4] = blockIdx.y; out[5] = blockIdx.z;
  out[6] = __shfl_sync(0xffffffffu, thread, 0);
  out[7] = warpSize;)
"""


def test_indices_in_three_dimensions() -> None:
    grid, block = (2, 3, 4), (8, 4, 4)
    out = torch.full((24, 128, 8), -1, dtype=torch.int32)
    launch(PLACES, "places", block, out, grid=grid)
    for axis in range(3):
        inner = block[0] ** min(axis, 1) * block[1] ** max(axis - 1, 0)
        assert torch.equal(
            out[..., axis], (torch.arange(128) // inner % block[axis]).expand(24, 128).int()
        )
        inner = grid[0] ** min(axis, 1) * grid[1] ** max(axis - 1, 0)
        assert torch.equal(
            out[..., 3 + axis],
            (torch.arange(24) // inner % grid[axis])[:, None].expand(24, 128).int(),
        )
    assert torch.equal(out[..., 6], (torch.arange(128) // 32 * 32).expand(24, 128).int())
    assert (out[..., 7] == 32).all()


@pytest.mark.parametrize("order", ORDERS)
def test_largest_block(order: str) -> None:
    out = torch.zeros(1, 1024, 8, dtype=torch.int32)
    launch(PLACES, "places", 1024, out, order=order)
    assert torch.equal(out[0, :, 0], torch.arange(1024, dtype=torch.int32))


SHUFFLES = r"""
struct Args { long long* out; };
GNNB_ENTRY(shuffles, Args, 32,
  long long* const out = args.out + 10 * threadIdx.x;
  const int i = threadIdx.x;
  out[0] = __shfl_sync(0xffffffffu, i, 5);
  out[1] = __shfl_sync(0xffffffffu, i, 5, 8);
  out[2] = __shfl_up_sync(0xffffffffu, i, 3);
  out[3] = __shfl_down_sync(0xffffffffu, i, 3, 16);
  out[4] = __shfl_xor_sync(0xffffffffu, i, 9);
  out[5] = __shfl_xor_sync(0xffffffffu, i, 9, 8);
  out[6] = __shfl_sync(0xffffffffu, 0x7fffffffffll + i, 31 - i);
  out[7] = (long long)__shfl_sync(0xffffffffu, 0.5 * i, i + 33);
  out[8] = __match_any_sync(0xffffffffu, i % 3);
  out[9] = __reduce_min_sync(0xffffffffu, i - 7) * 100 + __reduce_max_sync(0xffffffffu, i);)
"""


def _shuffle_reference(i: int) -> list[int]:
    """The PTX ISA's rules for shfl, for lane i."""
    segment = i // 8 * 8
    return [
        5,
        segment + 5,
        i - 3 if i >= 3 else i,
        i + 3 if i % 16 + 3 < 16 else i,
        i ^ 9,
        i ^ 9 if (i ^ 9) < segment + 8 else i,
        0x7FFFFFFFFF + 31 - i,
        (i + 1) % 32 // 2,
        sum(1 << j for j in range(32) if j % 3 == i % 3),
        -7 * 100 + 31,
    ]


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_follow_the_isa(order: str) -> None:
    out = torch.zeros(32, 10, dtype=torch.int64)
    launch(SHUFFLES, "shuffles", 32, out, order=order)
    assert out.tolist() == [_shuffle_reference(i) for i in range(32)]


DIVERGENCE = r"""
struct Args { const int* x; int* out; };
__device__ __forceinline__ void halves(const Args& args) {
  // The halves of a warp shuffle apart from each other, and not equally often.
  const int lane = threadIdx.x % 32;
  int v = args.x[threadIdx.x];
  if (lane < 16) {
    for (int d = 8; d; d /= 2) v += __shfl_xor_sync(0x0000ffffu, v, d);
  } else {
    v += __shfl_xor_sync(0xffff0000u, v, 8);
  }
  args.out[threadIdx.x] = v;
}
__device__ __forceinline__ void early(const Args& args) {
  // Lanes 20 and above leave; the others still name them in their mask. The second warp leaves
  // whole, and the barrier does not wait for it.
  if (threadIdx.x >= 20) return;
  const int v = __shfl_xor_sync(0xffffffffu, args.x[threadIdx.x], 1);
  __syncthreads();
  args.out[threadIdx.x] = v + 1000 * __popc(__ballot_sync(0xfffffu, v > 0));
}
__device__ __forceinline__ void votes(const Args& args) {
  const int v = args.x[threadIdx.x];
  int bits = __any_sync(0xffffffffu, v == 7);
  bits |= __any_sync(0xffffffffu, v == 777) << 1;
  bits |= __all_sync(0xffffffffu, v >= 0) << 2;
  bits |= __all_sync(0xffffffffu, v > 0) << 3;
  bits |= (__ballot_sync(0xffffffffu, v % 2) == 0xaaaaaaaau) << 4;
  bits |= (__syncthreads_count(v < 40) == 40) << 5;
  bits |= (__syncthreads_or(v == 63) && !__syncthreads_or(v == 64)) << 6;
  bits |= (__syncthreads_and(v < 64) && !__syncthreads_and(v < 63)) << 7;
  args.out[threadIdx.x] = bits;
}
GNNB_ENTRY(halves, Args, 64, halves(args))
GNNB_ENTRY(early, Args, 64, early(args))
GNNB_ENTRY(votes, Args, 64, votes(args))
"""


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_of_half_warps(order: str) -> None:
    x = torch.randint(0, 100, (64,), dtype=torch.int32)
    out = torch.zeros_like(x)
    launch(DIVERGENCE, "halves", 64, x, out, order=order)
    for warp in (0, 32):
        low, high = x[warp : warp + 16], x[warp + 16 : warp + 32]
        assert (out[warp : warp + 16] == low.sum()).all()
        assert torch.equal(out[warp + 16 : warp + 32], high + high.roll(8))


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_that_exit_are_not_waited_for(order: str) -> None:
    x = torch.arange(1, 65, dtype=torch.int32)
    out = torch.zeros_like(x)
    launch(DIVERGENCE, "early", 64, x, out, order=order)
    swapped = x[:20].view(10, 2).flip(1).reshape(-1)
    assert torch.equal(out[:20], swapped + 20 * 1000)
    assert not out[20:].any()


@pytest.mark.parametrize("order", ORDERS)
def test_votes(order: str) -> None:
    x = torch.arange(64, dtype=torch.int32)
    out = torch.zeros_like(x)
    launch(DIVERGENCE, "votes", 64, x, out, order=order)
    # 7 is in the first warp only; 0 is not positive, and only the first warp holds it.
    assert (out[:32] == 0b11110101).all()
    assert (out[32:] == 0b11111100).all()


SHARED = r"""
struct Args { const float* x; float* out; };
struct Pair { float a; int b; };
template <int ROWS> __device__ void transpose(const Args& args) {
  __shared__ float tile[ROWS][ROWS + 1], last[ROWS];
  __shared__ alignas(16) Pair pairs[ROWS];
  __shared__ int count;
  extern __shared__ float dynamic[];
  const int r = threadIdx.y;
  const int c = threadIdx.x;
  if (r == 0 && c == 0) count = 0;
  tile[r][c] = args.x[r * ROWS + c];
  dynamic[r * ROWS + c] = args.x[r * ROWS + c];
  __syncthreads();
  if (r == 0) { last[c] = tile[c][ROWS - 1]; pairs[c] = Pair{tile[c][0], c}; }
  atomicAdd(&count, 1);
  __syncthreads();
  args.out[r * ROWS + c] = tile[c][r] + 100.f * last[c] + pairs[r].a + pairs[r].b
      + 1000.f * count + dynamic[c * ROWS + r];
}
GNNB_ENTRY(transpose8, Args, 64, transpose<8>(args))
GNNB_ENTRY(transpose4, Args, 64, transpose<4>(args))
"""


@pytest.mark.parametrize("order", ORDERS)
def test_shared_memory_of_every_kind(order: str) -> None:
    for rows in (8, 4):  # two instances of one template: their shared variables are apart
        x = torch.arange(rows * rows, dtype=torch.float32).view(rows, rows)
        out = torch.zeros_like(x)
        launch(
            SHARED, f"transpose{rows}", (rows, rows, 1), x, out, order=order, shared_bytes=4 * 64
        )
        expected = 2 * x.T + 100 * x[:, -1] + x[:, :1] + torch.arange(rows)[:, None]
        assert torch.equal(out, expected + 1000 * rows * rows)


ATOMICS = r"""
struct Args { int* counter; int* arrival; float* sum; int* lock; };
__device__ void atomics(const Args& args) {
  args.arrival[threadIdx.x] = atomicAdd(args.counter, 1);
  atomicAdd(args.sum, 0.5f);
  atomicMax(args.counter + 1, (int)threadIdx.x * 7 % 64);
  atomicMin(args.counter + 2, (int)threadIdx.x * 7 % 64 - 9);
  while (atomicCAS(args.lock, 0, 1) != 0) {}
  args.counter[3] += 1;
  atomicExch(args.lock, 0);
}
GNNB_ENTRY(atomics, Args, 64, atomics(args))
"""


def _arrivals(order: str) -> list[int]:
    counter = torch.zeros(4, dtype=torch.int32)
    arrival = torch.zeros(64, dtype=torch.int32)
    total, lock = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    launch(ATOMICS, "atomics", 64, counter, arrival, total, lock, order=order)
    assert counter.tolist() == [64, 63, -9, 64]
    assert total.item() == 32
    assert lock.item() == 0
    return arrival.tolist()


def test_lane_orders_are_what_they_say() -> None:
    assert _arrivals("forward") == list(range(64))
    assert _arrivals("reversed") == list(range(63, -1, -1))
    shuffled = _arrivals("random:1")
    assert sorted(shuffled) == list(range(64))
    assert shuffled not in (list(range(64)), list(range(63, -1, -1)))
    assert _arrivals("random:1") == shuffled
    assert _arrivals("random:2") != shuffled


def test_configured_lane_order_is_the_default() -> None:
    counter = torch.zeros(4, dtype=torch.int32)
    arrival = torch.zeros(64, dtype=torch.int32)
    total, lock = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    with config.override(emulator_lane_order="reversed"):
        launch(ATOMICS, "atomics", 64, counter, arrival, total, lock, order=None)
    assert arrival.tolist() == list(range(63, -1, -1))


def test_threads_take_turns() -> None:
    """Autograd runs backward in threads of its own."""

    def run(scale: int) -> list[float]:
        x, out = torch.arange(1024, dtype=torch.float32) * scale, torch.zeros(8, 3)
        for _ in range(5):
            launch(REDUCTION, "sums", 128, x, out, 1024, grid=8, order="random:3")
        return out[:, 0].tolist()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(1, 9)))
    rows = torch.arange(1024, dtype=torch.float32).view(8, 128).sum(1)
    assert results == [(rows * scale).tolist() for scale in range(1, 9)]


def test_portable_context_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines without an assembly switch use ucontext."""
    flags = (*emulator._PLAIN_FLAGS, "-DGNNB_FIBER_UCONTEXT")
    monkeypatch.setattr(emulator, "_PLAIN_FLAGS", flags)
    source = REDUCTION + "// with ucontext\n"
    x, out = torch.arange(128, dtype=torch.float32), torch.zeros(1, 3)
    launch(source, "sums", 128, x, out, 128)
    assert out.tolist() == [[8128, 16256, 24384]]

"""Kernels that are wrong must be caught: by an error, or by a wrong result in some lane order."""

from __future__ import annotations

import re

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.runtime.emulator import EmulatorError
from tests.emulator.support import ORDERS, launch
from tests.emulator.test_blocks import REDUCTION

FIRST_BARRIER = "part[threadIdx.x / 32] = v;\n  __syncthreads();"
SECOND_BARRIER = "v += part[w];\n  __syncthreads();"


def _reduction_is_right(source: str, order: str) -> bool:
    x = torch.arange(128, dtype=torch.float32)
    out = torch.zeros(1, 3)
    launch(source, "sums", 128, x, out, 128, order=order)
    return out.tolist() == [[8128, 16256, 24384]]


@pytest.mark.parametrize("barrier", [FIRST_BARRIER, SECOND_BARRIER], ids=["before", "after"])
def test_a_missing_barrier_gives_a_wrong_result(barrier: str) -> None:
    """Without the first, partial sums are read before they are written; without the second, the
    next round overwrites them before everyone has read them."""
    assert REDUCTION.count(barrier) == 1
    mutant = REDUCTION.replace(barrier, barrier.replace("__syncthreads();", ""))
    assert all(_reduction_is_right(REDUCTION, order) for order in ORDERS)
    assert not all(_reduction_is_right(mutant, order) for order in ORDERS)


EXCHANGE = r"""
struct Args { const int* x; int* out; };
__device__ void exchange(const Args& args) {
  __shared__ int slot[32];
  slot[threadIdx.x] = args.x[threadIdx.x];
  __syncwarp();
  args.out[threadIdx.x] = slot[31 - threadIdx.x];
}
GNNB_ENTRY(exchange, Args, 32, exchange(args))
"""


def test_a_missing_warp_barrier_gives_a_wrong_result() -> None:
    x = torch.arange(32, dtype=torch.int32)

    def right(source: str, order: str) -> bool:
        out = torch.zeros_like(x)
        launch(source, "exchange", 32, x, out, order=order)
        return torch.equal(out, x.flip(0))

    assert all(right(EXCHANGE, order) for order in ORDERS)
    mutant = EXCHANGE.replace("__syncwarp();", "")
    assert not any(right(mutant, order) for order in ORDERS)


POISON = r"""
struct Args { float* floats; int* integers; unsigned short* halves; float* shuffled; };
__device__ void poison(const Args& args) {
  __shared__ float a[32];
  __shared__ int b[32];
  __shared__ unsigned short c[33];
  const int i = threadIdx.x;
  const int k = blockIdx.x * 32 + i;
  args.floats[k] = a[i];
  args.integers[k] = b[i];
  args.halves[k] = c[i + 1];
  a[i] = b[i] = c[i + 1] = 1;  // must not be seen by the next block
  // Lanes 16 and above take no part, so what lanes 0 to 15 read there is undefined.
  if (i < 16) args.shuffled[k] = __shfl_sync(0x0000ffffu, 1.0f, i + 8);
}
GNNB_ENTRY(poison, Args, 32, poison(args))
"""


def test_what_was_never_written_is_poison() -> None:
    floats, integers = torch.zeros(2, 32), torch.zeros(2, 32, dtype=torch.int32)
    halves, shuffled = torch.zeros(2, 32, dtype=torch.int16), torch.zeros(2, 32)
    launch(POISON, "poison", 32, floats, integers, halves, shuffled, grid=2)
    assert floats.isnan().all()
    assert (integers > 2**30).all()  # as an index it is far outside of everything
    assert halves.view(torch.float16).isnan().all()
    assert halves.view(torch.bfloat16).isnan().all()
    assert (shuffled[:, :8] == 1).all()
    assert shuffled[:, 8:16].isnan().all()


WAITS = r"""
struct Args { int* out; };
__device__ void skipped(const Args& args) {
  int v = threadIdx.x;
  if (threadIdx.x % 32 < 20 || threadIdx.x < 32)
    v = __shfl_xor_sync(0xffffffffu, v, 1);
  else
    __syncwarp(0xfff00000u);
  __syncthreads();
  args.out[threadIdx.x] = v;
}
__device__ void unnamed(const Args& args) {
  args.out[threadIdx.x] = __any_sync(0x0000ffffu, threadIdx.x == 3);
}
__device__ void exits(const Args& args) {
  if (threadIdx.x % 2) return;
  if (threadIdx.x < 8) __syncthreads(); else __syncwarp(0x55555555u);
}
__device__ void two_barriers(const Args& args) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__device__ void two_masks(const Args& args) {
  const int v = threadIdx.x;
  args.out[v] = v < 16 ? __shfl_sync(0xffffffffu, v, 0) : __shfl_sync(0xfffffffeu, v, 0);
}
__device__ void width(const Args& args) { args.out[0] = __shfl_sync(0xffffffffu, 1, 0, 12); }
__device__ void spins(const Args& args) { while (atomicCAS(args.out, 1, 1) != 1) {} }
__device__ void traps(const Args& args) { if (threadIdx.x == 33) __trap(); }
GNNB_ENTRY(skipped, Args, 64, skipped(args))
GNNB_ENTRY(unnamed, Args, 64, unnamed(args))
GNNB_ENTRY(exits, Args, 64, exits(args))
GNNB_ENTRY(two_barriers, Args, 64, two_barriers(args))
GNNB_ENTRY(two_masks, Args, 64, two_masks(args))
GNNB_ENTRY(width, Args, 64, width(args))
GNNB_ENTRY(spins, Args, 64, spins(args))
GNNB_ENTRY(traps, Args, 64, traps(args))
GNNB_ENTRY(right, Args, 64, args.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 5, 1);)
"""


def _error(entry: str, order: str = "forward", block: int = 64) -> str:
    out = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(EmulatorError) as caught:
        launch(WAITS, entry, block, out, grid=(2, 1, 1), order=order)
    # The library is fit for use after an error.
    launch(WAITS, "right", 64, out, order=order)
    assert (out == 5).all()
    return str(caught.value)


@pytest.mark.parametrize("order", ORDERS)
def test_a_deadlock_is_reported_with_what_each_lane_waits_for(order: str) -> None:
    message = _error("skipped", order)
    assert message.startswith("kernel skipped, block (0, 0, 0): deadlock")
    at = r" at \S+:\d+"
    patterns = [
        r"warp 0: lanes 0-31 wait in __syncthreads" + at,
        r"warp 1: lanes 0-19 wait in __shfl_xor_sync with mask 0xffffffff" + at,
        r"warp 1: lanes 20-31 wait in __syncthreads" + at,
    ]
    for pattern in patterns:
        assert re.search(pattern, message), (pattern, message)


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_that_have_exited_are_named(order: str) -> None:
    message = _error("exits", order)
    assert re.search(r"warp 0: lanes 0,2,4,6 wait in __syncthreads at", message)
    assert re.search(r"warp 0: lanes 8,10,.*30 wait in __syncwarp with mask 0x55555555", message)
    assert re.search(r"warp 0: lanes 1,3,.*31 have exited", message)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("entry", "pattern"),
    [
        ("unnamed", r"lane (1[6-9]|2\d|3[01]) calls __any_sync at .* with mask 0x0000ffff, which"),
        ("two_barriers", r"different barriers.*\n  warp 0: lanes 0-31 .*\n  warp 1: lanes 0-31 "),
        ("width", r"width is 12, not a power of two"),
        ("traps", r"__trap\(\) was called by thread \(33, 0, 0\)"),
    ],
)
def test_misuse_is_reported(entry: str, pattern: str, order: str) -> None:
    message = _error(entry, order)
    assert message.startswith(f"kernel {entry}, block (0, 0, 0): ")
    assert re.search(pattern, message), message


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_with_different_masks_do_not_meet(order: str) -> None:
    message = _error("two_masks", order, block=32)
    assert message.startswith("kernel two_masks, block (0, 0, 0): deadlock")
    assert re.search(r"lanes 0-15 wait in __shfl_sync with mask 0xffffffff at", message)
    assert re.search(r"lanes 16-31 wait in __shfl_sync with mask 0xfffffffe at", message)


def test_spinning_threads_are_reported() -> None:
    assert "livelock" in _error("spins")


@pytest.mark.parametrize(
    ("grid", "block", "problem"),
    [
        ((1, 1, 1), (65, 1, 1), r"65 threads; GNNB_ENTRY allows 1 to 64"),
        ((1, 65536, 1), (32, 1, 1), r"grid \(1, 65536, 1\) is outside"),
    ],
)
def test_launches_that_a_gpu_refuses(
    grid: tuple[int, int, int], block: tuple[int, int, int], problem: str
) -> None:
    out = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(EmulatorError, match=problem):
        launch(WAITS, "right", block, out, grid=grid)


def test_an_argument_struct_of_another_size_is_refused() -> None:
    out = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(EmulatorError, match="has 8 bytes, but 16 bytes were passed"):
        launch(WAITS, "right", 64, out, 3)


def test_bad_arguments_are_named() -> None:
    out = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(InvalidArgument, match="lane_order"):
        launch(WAITS, "right", 64, out, order="sideways")
    with pytest.raises(InvalidArgument, match="lane_order"):
        launch(WAITS, "right", 64, out, order="forward:3")
    with pytest.raises(InvalidArgument, match=r"entry: .*'wrong'"):
        launch(WAITS, "wrong", 64, out)
    with pytest.raises(InvalidArgument, match="grid"):
        launch(WAITS, "right", 64, out, grid=(0, 1, 1))

"""Builds with AddressSanitizer and UBSan run right kernels and stop wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator import sanitized

FAULTS = r"""
struct Args { float* out; long long i; };
__device__ __forceinline__ void put(float* to, long long i) { to[i] = 1.0f; }
GNNB_ENTRY(global_memory, Args, 32, put(args.out + threadIdx.x, args.i))
GNNB_ENTRY(shared_memory, Args, 32,
  __shared__ float tile[32]; put(tile, args.i); __syncthreads();
  args.out[threadIdx.x] = tile[threadIdx.x];)
GNNB_ENTRY(dynamic_memory, Args, 32,
  extern __shared__ float tile[]; put(tile, args.i); __syncthreads();
  args.out[threadIdx.x] = __shfl_sync(0xffffffffu, tile[args.i], 3);)
GNNB_ENTRY(own_stack, Args, 32,
  float mine[8]; put(mine, args.i); __syncwarp(); args.out[threadIdx.x] = mine[args.i];)
GNNB_ENTRY(alignment, Args, 32,
  __shared__ float tile[32];
  float* const at = tile + args.i;
  *reinterpret_cast<float4*>(at) = make_float4(1.f, 2.f, 3.f, 4.f);)
GNNB_ENTRY(overflow, Args, 32,
  const int big = 0x7ffffff0 + (int)args.i;
  args.out[threadIdx.x] = big + (int)threadIdx.x;)
"""

# entry, index, expected report; None: the access is within bounds.
CASES = [
    ("global_memory", 0, None),
    ("global_memory", 1, "heap-buffer-overflow"),
    ("shared_memory", 31, None),
    ("shared_memory", 32, "heap-buffer-overflow"),
    ("dynamic_memory", 15, None),
    ("dynamic_memory", 16, "use-after-poison"),
    ("own_stack", 7, None),
    ("own_stack", 8, "stack-buffer-overflow"),
    ("alignment", 0, "misaligned address"),
    ("overflow", 0, "signed integer overflow"),
]

# One process pays for the imports and the compiler; each case runs in a child of it.
SCRIPT = """
import os, sys, torch
from tests.emulator.support import launch
from tests.emulator.test_sanitized import CASES, FAULTS
launch(FAULTS, "global_memory", 32, torch.zeros(32), 0)
for number, (entry, index, _) in enumerate(CASES):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(f"{sys.argv[1]}/{number}", os.O_CREAT | os.O_WRONLY), 2)
        launch(FAULTS, entry, 32, torch.zeros(32), index, shared_bytes=64)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not sanitized.sanitizer_libraries():
        pytest.skip("g++ has no libasan.so and libubsan.so")
    return {"GNN_BACKEND_CACHE_DIR": str(tmp_path_factory.mktemp("sanitized-cache"))}


def test_faults_are_caught(cache: dict[str, str], tmp_path: Path) -> None:
    """Each kernel writes one element past the end, or breaks a rule that the hardware checks."""
    result = sanitized.run_python(["-c", SCRIPT, str(tmp_path)], extra=cache, timeout=200)
    assert result.returncode == 0, result.stderr
    statuses = [int(line) for line in result.stdout.split()]
    assert len(statuses) == len(CASES)
    for number, (case, status) in enumerate(zip(CASES, statuses, strict=True)):
        report = (tmp_path / str(number)).read_text()
        if case[2] is None:
            assert (status, report) == (0, ""), case
        else:
            assert status != 0, case
            assert case[2] in report, case


@pytest.mark.slow
def test_right_kernels_pass(cache: dict[str, str]) -> None:
    """The kernels of test_blocks, and one that leaves its fibers behind, in one process."""
    arguments = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/emulator"]
    arguments += ["-k", "test_blocks and random:1 or test_lanes_that_have_exited and random:1"]
    result = sanitized.run_python(arguments, extra=cache, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr

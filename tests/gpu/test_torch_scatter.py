"""torch_scatter's functions on CUDA: against the CPU, bit for bit, and without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters import torch_scatter
from gnn_backend.profile import profile
from tests.gpu import support
from tests.gpu.support import table
from tests.gpu.test_attention import heavy_tailed

pytestmark = support.MARKS
ROWS, WIDTH = 3000, 64
FUNCTIONS = [
    "scatter_sum", "scatter_mean", "scatter_max", "scatter_min", "scatter_mul", "scatter_softmax",
    "scatter_log_softmax", "scatter_logsumexp", "scatter_std",
]  # fmt: skip
KERNELS = [name for name in FUNCTIONS if name != "scatter_mul"]


def index_of(ascending: bool, device: str = support.DEVICE) -> Tensor:
    """Destinations with hubs, sorted or as they come."""
    edges, _, _ = heavy_tailed()
    index = edges[1] % ROWS
    return (index.sort().values if ascending else index).to(device)


def source(index: Tensor, dtype: torch.dtype = torch.float32, *before: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (*before, index.numel(), WIDTH)
    return torch.randn(shape, generator=generator).to(index.device, dtype)


def result(name: str, src: Tensor, index: Tensor, dim: int = 0) -> Any:
    return getattr(torch_scatter, name)(src, index, dim, dim_size=ROWS)


def first(found: Any) -> Tensor:
    return found[0] if isinstance(found, tuple) else found


def steps(function: Callable[[Tensor], Any], src: Tensor) -> tuple[Tensor, Tensor]:
    src = src.detach().requires_grad_()
    out = first(function(src))
    (grad,) = torch.autograd.grad(out.square().sum(), src)
    return out.detach(), grad


@table("name", FUNCTIONS)
@table("ascending", [True, False])
def test_against_the_cpu(name: str, ascending: bool) -> None:
    index = index_of(ascending)
    src = source(index) if name != "scatter_mul" else 1 + source(index) / 64
    want = steps(lambda x: result(name, x, index.cpu()), src.cpu().double())
    for _ in range(3):  # torch's operations, then kernels
        got = steps(lambda x: result(name, x, index), src)
        for a, b in zip(got, want, strict=True):
            error = (a.cpu().double() - b).abs().max() / b.abs().max()
            # A product of 100 000 values in float32, in whatever order, loses more than a sum.
            assert error < (1e-4 if name == "scatter_mul" else 2e-5), f"{error:.1e}"


@table("op", ["max", "min"])
@table("ascending", [True, False])
def test_places(op: str, ascending: bool) -> None:
    index = index_of(ascending)
    src = (source(index) * 4).round()  # many are equal
    got = result(f"scatter_{op}", src, index)
    want = result(f"scatter_{op}", src.cpu(), index.cpu())
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))


@table("name", KERNELS)
@table("ascending", [True, False])
def test_equal_bits(name: str, ascending: bool) -> None:
    index = index_of(ascending)
    src = source(index)
    with profile() as p:
        runs = [steps(lambda x: result(name, x, index), src) for _ in range(4)]
    assert p.launches
    for other in runs[2:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[1], other, strict=True))


@table("name", FUNCTIONS)
@table("ascending", [True, False])
def test_nothing_waits(name: str, ascending: bool) -> None:
    """Not at the first use either, where the size of the result is given."""
    index = index_of(ascending)
    src = source(index)
    steps(lambda x: result(name, x, index.clone()), src)  # kernels are loaded before
    steps(lambda x: result(name, x, index), src)
    index = index.clone()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            steps(lambda x: result(name, x, index), src)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@table("op", ["sum", "mean", "max", "min"])
@table("blocks", [1, 3])
def test_offsets(op: str, blocks: int) -> None:
    index = index_of(True)
    indptr = torch.searchsorted(index, torch.arange(ROWS + 1, device=index.device))
    src = source(index, torch.float32, blocks)
    wide = indptr.view(1, -1)
    want = steps(lambda x: torch_scatter.segment_csr(x, wide.cpu(), reduce=op), src.cpu().double())
    torch_scatter.segment_csr(src, wide.clone(), reduce=op)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = steps(lambda x: torch_scatter.segment_csr(x, wide, reduce=op), src)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(got, want, strict=True):
        assert (a.cpu().double() - b).abs().max() < 2e-5 * b.abs().max()


def test_captured_once_it_is_sorted() -> None:
    index = index_of(False)
    src = source(index)
    fresh = index.clone()
    want = first(result("scatter_max", src, index))
    sums = [result("scatter_sum", src, index) for _ in range(2)][1]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        largest = first(result("scatter_max", src, index))
        total = result("scatter_sum", src, index)
        unknown = result("scatter_sum", src, fresh)  # torch's own
    graph.replay()
    assert torch.equal(largest, want) and torch.equal(total, sums)
    torch.testing.assert_close(unknown, sums, rtol=1e-4, atol=1e-2)  # a row of 100 000 values


@table("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    index = index_of(True)
    src = source(index, dtype)
    want = result("scatter_mean", src.cpu().double(), index.cpu())
    got = result("scatter_mean", src, index)
    assert got.dtype == dtype
    error = (got.cpu().double() - want).abs().max() / want.abs().max()
    assert error < 4 * torch.finfo(dtype).eps, f"{error:.1e}"


@table("ascending", [True, False])
def test_size_from_the_index(ascending: bool) -> None:
    """An index of one column is looked at along the right dimension."""
    index = index_of(ascending)
    src = source(index)
    want = torch_scatter.scatter_sum(src.cpu().double(), index.cpu(), 0).float()
    for shaped in (index.clone(), index[:, None].clone()):
        for _ in range(3):
            got = torch_scatter.scatter_sum(src, shaped, 0)
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-2)

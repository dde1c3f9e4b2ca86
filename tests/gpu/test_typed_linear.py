"""The typed linear on CUDA: every index at small sizes, real shapes, CUDA graphs, no waits."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import torch

from gnn_backend.datasets import RELATIONAL
from gnn_backend.ops import reference
from gnn_backend.ops.matmul import segment_matmul
from gnn_backend.ops.typed_linear import Bounds, typed_linear, typed_weight_grad
from gnn_backend.profile import profile
from tests.gpu import support
from tests.gpu.support import DEVICE, GIB, table
from tests.ops.typed_products import TF32, TOLERANCE, check, close, problem

pytestmark = support.MARKS

PRECISIONS = {
    "f32": (torch.float32, None), "tf32": (torch.float32, TF32), "bf16": (torch.bfloat16, None),
    "f16": (torch.float16, None),
}  # fmt: skip
SIZES = [(64, 64), (128, 32), (32, 128), (7, 5), (1, 1), (100, 36), (256, 200)]


@contextlib.contextmanager
def multiplying(precision: str) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@table("precision", PRECISIONS)
@table("inner, outer", SIZES)
def test_sizes(precision: str, inner: int, outer: int) -> None:
    dtype, tolerance = PRECISIONS[precision]
    lengths = [3, 0, 1500, 129, 0, 4000]
    with multiplying(precision), profile() as record:
        for flags in itertools.product((False, True), repeat=3):
            index = dict(zip(("rows", "out_rows", "scale"), flags, strict=True))
            check(problem(lengths, inner, outer, dtype=dtype, device=DEVICE, **index), tolerance)
    assert {target for target, _ in record.launches} == {"cuda"}


@table("precision", PRECISIONS)
@table("each", [False, True])
def test_heads(precision: str, each: bool) -> None:
    dtype, tolerance = PRECISIONS[precision]
    index = {"rows": True, "out_rows": True, "scale": True}
    with multiplying(precision):
        for heads, inner, outer in ((4, 32, 32), (3, 7, 9), (8, 16, 64)):
            form = (heads, inner, outer)
            given = problem([100, 0, 777], *form[1:], heads, each=each, dtype=dtype, device=DEVICE,
                            **index)  # fmt: skip
            check(given, tolerance)


@table("name", ["ogbn-mag", "wikikg2", "fb15k-237"])
@table("precision", ["f32", "bf16"])
def test_real_sizes(name: str, precision: str) -> None:
    """Some rows against float64, sums against cancelling ones, and equal bits."""
    support.needs_memory(60 * GIB)
    nodes, edges, _, types = RELATIONAL[name]
    dtype, _ = PRECISIONS[precision]
    generator = torch.Generator(device=DEVICE).manual_seed(0)
    weights = torch.randn(types, generator=generator, device=DEVICE).mul(1.22).exp()
    of = torch.multinomial(weights, edges, True, generator=generator).sort().values
    ptr = torch.searchsorted(of, torch.arange(types + 1, device=DEVICE)).int()
    x = torch.randn(nodes, 64, generator=generator, device=DEVICE).to(dtype)
    w = (torch.randn(types, 64, 64, generator=generator, device=DEVICE) / 8).to(dtype)
    rows = torch.randint(nodes, (edges,), generator=generator, device=DEVICE, dtype=torch.int32)
    order = torch.randperm(edges, generator=generator, device=DEVICE).int()
    with multiplying(precision):
        out = typed_linear(x, w, Bounds(ptr), rows=rows, out_rows=order)
        assert torch.equal(out, typed_linear(x, w, Bounds(ptr), rows=rows, out_rows=order))
        some = torch.randint(edges, (20_000,), generator=generator, device=DEVICE)
        want = reference.typed_linear(x.double(), w.double(), of[some], rows=rows[some])
        close(out[order[some].long()], want, TOLERANCE[dtype])
        grad = typed_weight_grad(x, out, Bounds(ptr), x_rows=rows, grad_rows=order)
        again = typed_weight_grad(x, out, Bounds(ptr), x_rows=rows, grad_rows=order)
        assert torch.equal(grad, again)
    for matrix in (0, types // 2, types - 1):
        begin, end = ptr[matrix : matrix + 2].tolist()
        left = x[rows[begin:end].long()].double()
        right = out[order[begin:end].long()].double()
        close(grad[matrix], left.t() @ right, max(1e-4, TOLERANCE[dtype]))


def test_capture_and_no_wait() -> None:
    """Nothing waits for bounds on the device, and a CUDA graph holds a training step."""
    x = torch.randn(1000, 64, device=DEVICE, requires_grad=True)
    w = torch.randn(3, 64, 32, device=DEVICE, requires_grad=True)
    ptr = torch.tensor([0, 10, 500, 1000], device=DEVICE)

    def step() -> list[torch.Tensor]:
        return list(torch.autograd.grad(segment_matmul(x, w, ptr).square().sum(), (x, w)))

    want = step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))

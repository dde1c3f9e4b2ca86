"""The segment functions against plain torch in float64, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_backend.adapters import torch_scatter
from gnn_backend.errors import InvalidArgument
from tests.adapters.torch_scatter import oracle
from tests.adapters.torch_scatter.test_scatter import source

pytestmark = pytest.mark.sampled(9)

INDPTR = torch.tensor([0, 2, 2, 9, 11, 12])
GAPS = torch.tensor([1, 3, 3, 8, 8, 10])  # values before, between and after belong to no segment
E, N = 12, 5
OTHER = torch.tensor([0, 5, 6, 6, 12, 12])

#: Shape of the source and the offsets.
OFFSETS = {
    "list": ((E,), INDPTR),
    "rows": ((E, 3), INDPTR),
    "gaps": ((E, 3), GAPS),
    "blocks": ((2, E, 3), INDPTR.view(1, -1)),
    "each block its own": ((2, E, 3), torch.stack([OTHER, GAPS])),
    "last of two": ((3, E), INDPTR.expand(3, -1)),
}
INDEX = torch.tensor([0, 0, 1, 1, 1, 1, 1, 3, 3, 3, 3, 4])
COO = {
    "list": ((E,), INDEX),
    "rows": ((E, 2, 2), INDEX),
    "blocks": ((2, E, 3), INDEX.view(1, -1)),
    "each block its own": ((2, E, 3), torch.stack([INDEX.clamp(min=1), INDEX])),
}


def check(got: Tensor, want: Tensor, src: Tensor) -> None:
    """Values and the gradient for some cotangent."""
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert got.is_contiguous()
    grad = source(tuple(want.shape))
    (expected,) = torch.autograd.grad(want, src, grad, retain_graph=True)
    (found,) = torch.autograd.grad(got, src, grad)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", OFFSETS)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_segments_by_offsets(op: str, layout: str, engine: str) -> None:
    shape, indptr = OFFSETS[layout]
    dim = indptr.dim() - 1
    src = source(shape).requires_grad_()
    index = oracle.of_offsets(indptr, src)
    want = oracle.reduced(op, src, index, dim, N)
    got = getattr(torch_scatter, f"segment_{op}_csr")(src, indptr)
    if op in ("max", "min"):
        got, arg = got
        assert torch.equal(arg, oracle.first(src, index, dim, want))
    check(got, want, src)
    assert torch.equal(torch_scatter.segment_csr(src, indptr, reduce=op), got)
    held = torch.full_like(want, 7.0)
    into = torch_scatter.segment_csr(src, indptr, held, op)
    assert into is held, "what it held is lost"
    check(into, want, src)


@pytest.mark.parametrize("layout", COO)
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_segments_by_index(op: str, layout: str, engine: str) -> None:
    shape, index = COO[layout]
    dim = index.dim() - 1
    full = oracle.expanded(index.expand(shape[: dim + 1]), source(shape), dim)
    for size in (5, 6):
        src = source(shape).requires_grad_()
        want = oracle.reduced(op, src, full, dim, size)
        named = getattr(torch_scatter, f"segment_{op}_coo")
        got = named(src, index, dim_size=size) if size > 5 else named(src, index)
        if op in ("max", "min"):
            got, arg = got
            assert torch.equal(arg, oracle.first(src, full, dim, want))
        check(got, want, src)
        assert torch.equal(torch_scatter.segment_coo(src, index, None, size, op), got)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_out_of_an_index_takes_part(op: str, engine: str) -> None:
    src, held = source((E, 2)), source((5, 2)).flip(0)
    full = oracle.expanded(INDEX, src, 0)
    plain = oracle.reduced("sum" if op == "mean" else op, src, full, 0, 5)
    count = oracle.reduced("sum", torch.ones_like(src), full, 0, 5)
    want = {
        "sum": held + plain,
        "mean": (held + plain) / count.clamp(min=1),
        "max": torch.where((plain > held) & (count > 0), plain, held),
        "min": torch.where((plain < held) & (count > 0), plain, held),
    }[op]
    out = held.clone()
    assert torch_scatter.segment_coo(src, INDEX, out, reduce=op) is out
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize("layout", OFFSETS)
def test_gather_by_offsets(layout: str, engine: str) -> None:
    shape, indptr = OFFSETS[layout]
    dim = indptr.dim() - 1
    size = int(indptr.reshape(-1)[-1])
    nodes = source((*shape[:dim], N, *shape[dim + 1 :])).requires_grad_()
    like = torch.zeros(*shape[:dim], size, *shape[dim + 1 :])
    index = oracle.of_offsets(indptr.clamp(max=size), like)
    want = torch.where(index < 0, 0, nodes.gather(dim, index.clamp(min=0)))
    check(torch_scatter.gather_csr(nodes, indptr), want, nodes)
    out = torch.full_like(want, 7.0)
    assert torch_scatter.gather_csr(nodes, indptr, out) is out
    check(out, want, nodes)


@pytest.mark.parametrize("layout", COO)
def test_gather_by_index(layout: str, engine: str) -> None:
    shape, index = COO[layout]
    dim = index.dim() - 1
    index = index.expand(shape[: dim + 1])
    nodes = source((*shape[:dim], N, *shape[dim + 1 :])).requires_grad_()
    want = nodes.gather(dim, oracle.expanded(index, source(shape), dim))
    check(torch_scatter.gather_coo(nodes, index), want, nodes)
    out = torch.full_like(want, 7.0)
    assert torch_scatter.gather_coo(nodes, index, out) is out
    check(out, want, nodes)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_integers(op: str, engine: str) -> None:
    src = torch.arange(E).remainder(5)
    index = oracle.of_offsets(GAPS, src)
    want = oracle.reduced("sum" if op == "mean" else op, src, index, 0, N)
    if op == "mean":
        want = want // oracle.reduced("sum", torch.ones_like(src), index, 0, N).clamp(min=1)
    assert torch.equal(torch_scatter.segment_csr(src, GAPS, reduce=op), want)
    assert torch.equal(torch_scatter.gather_csr(torch.arange(N), INDPTR),
                       oracle.of_offsets(INDPTR, src))  # fmt: skip
    assert torch.equal(torch_scatter.gather_coo(torch.arange(5), INDEX), INDEX)


def test_mean_of_negative_integers_is_rounded_towards_0() -> None:
    src = torch.tensor([-3, 0, 3, 0])
    assert torch_scatter.segment_mean_csr(src, torch.tensor([0, 2, 4])).tolist() == [-1, 1]
    index, out = torch.tensor([0, 0, 1, 1]), torch.tensor([-2, 2])
    assert torch_scatter.segment_mean_coo(src, index).tolist() == [-1, 1]
    assert torch_scatter.segment_mean_coo(src, index, out).tolist() == [-2, 2]


@pytest.mark.parametrize("op", ["max", "min"])
def test_segments_in_which_nothing_wins(op: str, engine: str) -> None:
    worst = -torch.inf if op == "max" else torch.inf
    finite = torch.finfo(torch.float32).min if op == "max" else torch.finfo(torch.float32).max
    src = torch.tensor([torch.nan, 1.0, worst, torch.nan])
    values, arg = getattr(torch_scatter, f"segment_{op}_csr")(src, torch.tensor([0, 2, 4, 4]))
    assert values.tolist() == [1, finite, 0] and arg.tolist() == [1, 4, 4]


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_nothing(op: str, engine: str) -> None:
    zeros = torch.zeros(4, dtype=torch.int64)
    src = torch.ones(0, 2, requires_grad=True)
    got = torch_scatter.segment_csr(src, zeros, reduce=op)
    assert got.shape == (3, 2) and got.eq(0).all()
    got.sum().backward()
    assert torch_scatter.segment_csr(src, zeros[:1], reduce=op).shape == (0, 2)
    assert torch_scatter.segment_csr(src, zeros[:0], reduce=op).shape == (0, 2)
    assert torch_scatter.segment_coo(src, zeros[:0], reduce=op).shape == (0, 2)
    assert torch_scatter.segment_coo(src, zeros[:0], dim_size=3, reduce=op).eq(0).all()
    assert torch_scatter.gather_csr(torch.ones(3, 2), zeros).shape == (0, 2)
    assert torch_scatter.gather_csr(torch.ones(0, 2), zeros).shape == (0, 2)
    assert torch_scatter.gather_coo(torch.ones(3, 2), zeros[:0]).shape == (0, 2)


def test_second_derivatives(engine: str) -> None:
    src = source((E, 2)).requires_grad_()
    nodes = source((N, 2)).requires_grad_()
    for op in ("sum", "mean", "max"):
        assert torch.autograd.gradgradcheck(
            lambda x, op=op: torch_scatter.segment_csr(x * x, GAPS, reduce=op), src
        )
    assert torch.autograd.gradgradcheck(lambda x: torch_scatter.gather_csr(x * x, GAPS), nodes)


def test_results_may_be_written_to(engine: str) -> None:
    """As torch_sparse does with what gather_csr gives it."""
    nodes = source((N, 2)).requires_grad_()
    src = source((2, E, 2)).requires_grad_()
    offsets = GAPS.view(1, -1)
    results = [
        torch_scatter.gather_csr(nodes, INDPTR),
        torch_scatter.segment_sum_csr(src, offsets),
        *torch_scatter.segment_max_csr(src, offsets)[:1],
    ]
    for result in results:
        result.mul_(2).sum().backward()
    gathered = nodes.grad
    assert gathered is not None
    assert torch.equal(gathered[:, 0], 2.0 * INDPTR.diff())


def test_errors() -> None:
    src = torch.ones(E, 2)
    with pytest.raises(InvalidArgument, match="sum, add, mean"):
        torch_scatter.segment_csr(src, INDPTR, reduce="mul")
    with pytest.raises(InvalidArgument, match="sum, add, mean"):
        torch_scatter.segment_coo(src, INDEX, reduce="mul")
    with pytest.raises(InvalidArgument, match="indptr: no index"):
        torch_scatter.segment_csr(src, INDPTR.double())
    with pytest.raises(InvalidArgument, match="indptr: wrong number of dimensions; got 3"):
        torch_scatter.segment_csr(src, INDPTR.view(1, 1, -1))
    with pytest.raises(InvalidArgument, match="index: wrong number of dimensions; got 3"):
        torch_scatter.segment_coo(src, INDEX.view(1, 1, -1))
    with pytest.raises(InvalidArgument, match="out: does not fit"):
        torch_scatter.segment_csr(src, INDPTR, torch.zeros(3, 2))
    with pytest.raises(InvalidArgument, match="src: wrong number of segments; got 3"):
        torch_scatter.gather_csr(torch.ones(3, 2), INDPTR)
    with pytest.raises(InvalidArgument, match="index: does not fit src"):
        torch_scatter.gather_coo(torch.ones(3, N, 2), INDEX.view(1, -1))
    with pytest.raises(InvalidArgument, match="out: does not fit"):
        torch_scatter.gather_coo(torch.ones(N, 2), INDEX, torch.zeros(E, 3))

"""The sparse operators on the emulator against DGL's own on the CPU, at the level it calls them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import gnn_backend  # noqa: F401 - lets DGL load on current PyTorch
from gnn_backend.graph import Graph
from gnn_backend.ops.csr import csrmask, csrmm, csrsum
from gnn_backend.ops.edge_softmax import edge_softmax, edge_softmax_backward
from gnn_backend.ops.edgewise import gsddmm
from gnn_backend.ops.segment import scatter_add, segment_reduce, segment_reduce_backward
from gnn_backend.ops.segment_mm import segment_mm
from gnn_backend.ops.spmm import gspmm
from tests.ops.operators import OPS, SHAPES, draw
from tests.ops.support import edges_with_hubs

dgl = pytest.importorskip("dgl")
stock = pytest.importorskip("dgl._sparse_ops")

pytestmark = [pytest.mark.usefixtures("unoptimised", "splitting"), pytest.mark.sampled(5)]
EDGES, NUM_SRC, NUM_DST = edges_with_hubs()
COUNTS = {"u": NUM_SRC, "v": NUM_DST, "e": EDGES.shape[1]}


def ours() -> Graph:
    return Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)


def theirs(dtype: torch.dtype = torch.int64) -> Any:
    ends = tuple(EDGES.to(dtype))
    graph = dgl.heterograph({("a", "r", "b"): ends}, {"a": NUM_SRC, "b": NUM_DST})
    return graph._graph.get_relation_graph(0)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def half(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Every second combination: every pair of values of two axes is in one of them."""
    places = itertools.product(*(range(len(axis)) for axis in axes))
    chosen = [tuple(axis[i] for axis, i in zip(axes, place, strict=True))
              for place in places if sum(place) % 2 == 0]  # fmt: skip
    for a, b in itertools.combinations(range(len(axes)), 2):
        assert len({(row[a], row[b]) for row in chosen}) == len(axes[a]) * len(axes[b])
    return chosen


@pytest.mark.parametrize(
    ("op", "reduce", "which"), half(OPS, ("sum", "max", "min"), range(0, len(SHAPES), 3))
)
def test_gspmm(op: str, reduce: str, which: int) -> None:
    """Values and arguments, without ties, which stock breaks in an order of its own."""
    generator = torch.Generator().manual_seed(0)
    u, e = (0.5 + torch.rand(COUNTS[t], *s, generator=generator)
            for t, s in zip("ue", SHAPES[which], strict=True))  # fmt: skip
    u = u - 1
    if u.dim() > 1 and e.dim() > 1:  # as dgl.ops pads them before it calls
        rank = max(u.dim(), e.dim())
        u, e = (t.reshape(len(t), *(1,) * (rank - t.dim()), *t.shape[1:]) for t in (u, e))
    kind = (torch.int32, torch.int64)[which % 2]
    want, (want_u, want_e) = stock._gspmm(theirs(kind), op, reduce, u, e)
    got, got_u, got_e = gspmm(ours(), op, reduce, u, e)
    same(got, want)
    for mine, other in ((got_u, want_u), (got_e, want_e)):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert torch.equal(mine.long().view(other.shape), other.long())


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_gspmm_of_the_reverse(reduce: str) -> None:
    x = draw(NUM_DST, (8,), torch.float32)
    e = draw(EDGES.shape[1], (8,), torch.float32)
    for op in ("mul", "copy_lhs", "copy_rhs"):
        want = stock._gspmm(theirs().reverse(), op, reduce, x, e)[0]
        same(gspmm(ours(), op, reduce, x, e, reverse=True)[0], want)


def test_mean() -> None:
    graph = dgl.graph(tuple(EDGES), num_nodes=max(NUM_SRC, NUM_DST))
    x = torch.randn(graph.num_nodes(), 5)
    own = Graph.from_edge_index(EDGES, graph.num_nodes(), graph.num_nodes())
    same(gspmm(own, "copy_lhs", "mean", x, None)[0], dgl.ops.copy_u_mean(graph, x))


@pytest.mark.parametrize(
    ("op", "targets", "shapes"),
    half(
        ("add", "sub", "mul", "div", "dot", "copy_lhs", "copy_rhs"),
        ("uv", "vu", "ue", "ev", "vv"),
        (((2, 4), (2, 4)), ((3, 1, 5), (1, 2, 5)), ((), ())),
    ),
)
def test_gsddmm(op: str, targets: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    lhs, rhs = (draw(COUNTS[t], s, torch.float32, i)
                for i, (t, s) in enumerate(zip(targets, shapes, strict=True)))  # fmt: skip
    same(gsddmm(ours(), op, lhs, rhs, *targets), stock._gsddmm(theirs(), op, lhs, rhs, *targets))


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("shape", [(), (3,), (4, 1)])
def test_edge_softmax(shape: tuple[int, ...], norm_by: str) -> None:
    graph = dgl.heterograph({("a", "r", "b"): tuple(EDGES)}, {"a": NUM_SRC, "b": NUM_DST})
    logits = torch.randn(EDGES.shape[1], *shape, requires_grad=True)
    want = dgl.ops.edge_softmax(graph, logits, norm_by=norm_by)
    got = edge_softmax(ours(), logits.detach(), norm_by)
    same(got, want.detach())
    grad = torch.randn_like(want)
    (expected,) = torch.autograd.grad(want, logits, grad)
    same(edge_softmax_backward(ours(), got, grad, norm_by), expected)


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_segment_reduce(op: str, dtype: torch.dtype) -> None:
    offsets = torch.tensor([0, 0, 3, 40, 41, 41], dtype=dtype)
    x = draw(41, (3,), torch.float32)
    x[5, 1] = torch.nan if op != "sum" else 1.0
    x[40, 2] = -torch.inf
    want, want_arg = stock._segment_reduce(op, x, offsets)
    got, arg = segment_reduce(op, x, offsets)
    same(got, want)
    if arg is not None:
        assert torch.equal(arg, want_arg)
        grad = torch.randn_like(got)
        other = stock._bwd_segment_cmp(grad, want_arg, 41)
        assert torch.equal(segment_reduce_backward(grad, arg, 41), other)


def test_scatter_add() -> None:
    index = torch.randint(0, 9, (60,))
    x = torch.randn(60, 4)
    same(scatter_add(x, index, 10), stock._scatter_add(x, index, 10))


def test_segment_mm() -> None:
    a, b, lengths = torch.randn(12, 4), torch.randn(3, 4, 5), torch.tensor([5, 0, 7])
    same(segment_mm(a, b, lengths), dgl.ops.segment_mm(a, b, lengths))


def test_csr() -> None:
    ends = torch.tensor([[0, 0, 1, 2, 2], [1, 1, 2, 0, 2]])
    other = torch.tensor([[0, 0, 1, 2], [1, 2, 2, 2]])
    mine = [Graph.from_edge_index(e, 3, 3) for e in (ends, other)]
    hosts = [dgl.graph(tuple(e), num_nodes=3)._graph for e in (ends, other)]
    weights = [torch.randn(e.shape[1]) for e in (ends, other)]
    same(csrmask(mine[0], weights[0], mine[1]), stock._csrmask(hosts[0], weights[0], hosts[1]))
    for got, (graph, want) in (
        (csrmm(mine[0], weights[0], mine[1], weights[1]),
         stock._csrmm(hosts[0], weights[0], hosts[1], weights[1], 1)),
        (csrsum(mine, weights), stock._csrsum(hosts, weights)),
    ):  # fmt: skip
        dense = torch.zeros(3, 3)
        dense[graph.edges(0)[0], graph.edges(0)[1]] = want
        rows = torch.repeat_interleave(torch.arange(3), got.indptr.diff())
        found = torch.zeros(3, 3)
        found[rows, got.indices] = got.weights
        same(found, dense)

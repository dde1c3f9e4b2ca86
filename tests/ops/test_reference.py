"""The operators in plain torch, against loops over edges in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops import reference

NUM_SRC, NUM_DST = 7, 6
SRC = torch.tensor([0, 3, 3, 6, 2, 0, 3, 5, 1, 1])
DST = torch.tensor([2, 2, 2, 0, 4, 4, 0, 2, 5, 5])  # rows 1 and 3 are empty, 5 has parallel edges
E = len(SRC)
OPS = ("add", "sub", "mul", "div", "copy_lhs", "copy_rhs")
SHAPES = [((), ()), ((4,), (4,)), ((4,), (1,)), ((2, 3), (2, 1)), ((2, 3), (3,)), ((1,), (5, 3, 2))]
SIMPLE = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b, "copy_lhs": lambda a, b: a, "copy_rhs": lambda a, b: b,
    "dot": lambda a, b: (a * b).sum(-1, keepdim=True),
}  # fmt: skip


def graph() -> Graph:
    return Graph.from_edge_index(torch.stack([SRC, DST]), NUM_SRC, NUM_DST)


def features(rows: int, shape: tuple[int, ...], seed: int, dtype: Any = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(rows, *shape, generator=generator, dtype=torch.float64) + 0.5).to(dtype)


def message(op: str, lhs: Tensor, rhs: Tensor, edge: tuple[int, int]) -> Tensor:
    """What one edge sends, shapes aligned from the right."""
    return SIMPLE[op](lhs[edge[0]], rhs[edge[1]])


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("op", OPS)
def test_gspmm(op: str, reduce: str, shapes: Any) -> None:
    u, e = features(NUM_SRC, shapes[0], 1), features(E, shapes[1], 2)
    out, arg_u, arg_e = reference.gspmm(graph(), op, reduce, u, e)
    sent = [message(op, u, e, (int(SRC[i]), i)) for i in range(E)]
    for row in range(NUM_DST):
        mine = [i for i in range(E) if DST[i] == row]
        if not mine:
            empty = {"max": float("-inf"), "min": float("inf")}.get(reduce, 0.0)
            assert (out[row] == empty).all()
            continue
        stacked = torch.stack([sent[i] for i in mine])
        if reduce in ("sum", "mean"):
            torch.testing.assert_close(out[row], getattr(stacked, reduce)(0))
            assert arg_u is None and arg_e is None
            continue
        best = stacked.amax(0) if reduce == "max" else stacked.amin(0)
        assert torch.equal(out[row], best)
        first = torch.tensor(mine)[(stacked == best).int().argmax(0)]
        if op != "copy_rhs":
            assert torch.equal(arg_u[row], SRC[first])
        else:
            assert arg_u is None
        if op != "copy_lhs":
            assert torch.equal(arg_e[row], first)
        else:
            assert arg_e is None


@pytest.mark.parametrize("targets", list(itertools.product("uve", repeat=2)), ids="".join)
@pytest.mark.parametrize("op", [*OPS, "dot"])
def test_gsddmm(op: str, targets: tuple[str, str]) -> None:
    rows = {"u": (NUM_SRC, SRC), "v": (NUM_DST, DST), "e": (E, torch.arange(E))}
    for shapes in [((3,), (3,)), ((2, 3), (2, 3)), *([] if op == "dot" else SHAPES)]:
        lhs, rhs = (
            features(rows[t][0], s, k) for k, (t, s) in enumerate(zip(targets, shapes, strict=True))
        )
        out = reference.gsddmm(graph(), op, lhs, rhs, *targets)
        for i in range(E):
            ends = tuple(int(rows[t][1][i]) for t in targets)
            torch.testing.assert_close(out[i], message(op, lhs, rhs, ends))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_of_16_bits_are_taken_in_32(dtype: torch.dtype) -> None:
    many = 4096
    star = Graph.from_edge_index(torch.stack([torch.arange(many), torch.zeros(many).long()]))
    ones = torch.ones(many, 1, dtype=dtype)
    assert reference.gspmm(star, "copy_lhs", "sum", ones, None)[0].item() == many
    assert reference.scatter_add(ones, torch.zeros(many).long(), 2).tolist() == [[many], [0]]
    offsets = torch.tensor([0, many])
    assert reference.segment_reduce("sum", ones, offsets)[0].item() == many


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax(norm_by: str) -> None:
    logits = features(E, (2,), 3) * 5
    logits[4] = 700.0  # would overflow without the maximum
    rows, width = (DST, NUM_DST) if norm_by == "dst" else (SRC, NUM_SRC)
    out = reference.edge_softmax(graph(), logits, norm_by)
    grad = features(E, (2,), 4)
    found = reference.edge_softmax_backward(graph(), out, grad, norm_by)
    for row in range(width):
        mine = (rows == row).nonzero()[:, 0]
        if len(mine):
            part = logits[mine].clone().requires_grad_()
            wanted = part.softmax(0)
            torch.testing.assert_close(out[mine], wanted)
            torch.testing.assert_close(
                found[mine], torch.autograd.grad(wanted, part, grad[mine])[0]
            )


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_segments(op: str) -> None:
    feat, offsets = features(9, (3,), 5), torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    out, arg = reference.segment_reduce(op, feat, offsets)
    for s, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        part = feat[begin:end]
        if begin == end:
            assert arg is None or (arg[s] == -1).all()
        elif op == "sum":
            torch.testing.assert_close(out[s], part.sum(0))
        else:
            best = part.max(0) if op == "max" else part.min(0)
            assert torch.equal(out[s], best.values)
            assert torch.equal(arg[s].long(), best.indices + begin)
    if arg is not None:
        assert arg.dtype == torch.int32
        grad = reference.segment_reduce_backward(torch.ones(3, 3), arg, 9)
        assert grad.shape == (9, 3) and grad.sum() == 6
        assert (grad.nonzero()[:, 0].unique() == arg[arg >= 0].unique()).all()


def test_products() -> None:
    a, weight = features(9, (4,), 6), features(3, (4, 5), 7)
    lengths, kinds = torch.tensor([4, 0, 5]), torch.tensor([0] * 4 + [2] * 5)
    wanted = torch.stack([row @ weight[k] for row, k in zip(a, kinds, strict=True)])
    torch.testing.assert_close(reference.segment_mm(a, weight, lengths), wanted)
    grad = features(9, (5,), 8)
    back = reference.segment_mm(grad, weight, lengths, transposed=True)
    torch.testing.assert_close(
        back, torch.stack([g @ weight[k].t() for g, k in zip(grad, kinds, strict=True)])
    )
    by_weight = torch.zeros_like(weight)
    for row, g, k in zip(a, grad, kinds, strict=True):
        by_weight[k] += torch.outer(row, g)
    torch.testing.assert_close(reference.segment_mm_backward_weight(a, grad, lengths), by_weight)
    order = torch.tensor([3, 8, 0, 5, 1, 1, 7, 2, 6])
    some = torch.tensor([2, 0, 0, 1, 2, 1, 0, 0, 2])
    found = reference.gather_mm(a, weight, order, some)
    picked = torch.stack([a[i] @ weight[k] for i, k in zip(order, some, strict=True)])
    torch.testing.assert_close(found, picked)
    to = torch.tensor([0, 1, 1, 0, 2, 2, 2, 0, 1])
    out = reference.gather_mm_scatter(a, weight, 3, order, some, to)
    torch.testing.assert_close(out, torch.zeros(3, 5).double().index_add(0, to, picked))
    outer = reference.gather_mm_scatter(a, grad, len(weight), None, None, kinds)
    torch.testing.assert_close(outer, by_weight)


def test_nan_never_wins() -> None:
    none, nan = float("-inf"), float("nan")
    x = torch.tensor([[nan, 1.0], [3.0, nan], [nan, 2.0], [none, 5.0]])
    ends = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 2]])
    y, arg = reference.segment_reduce("max", x, torch.tensor([0, 2, 3, 4, 4]))
    assert y.tolist() == [[3.0, 1.0], [none, 2.0], [none, 5.0], [none, none]]
    assert arg.tolist() == [[1, 0], [-1, 2], [-1, 3], [-1, -1]]
    y, arg_u, _ = reference.gspmm(Graph.from_edge_index(ends), "copy_lhs", "max", x, None)
    assert y.tolist() == [[3.0, 1.0], [none, 2.0], [none, 5.0]]
    assert arg_u.tolist() == [[1, 0], [0, 2], [0, 3]]


def test_graphs_without_edges() -> None:
    empty = Graph.from_edge_index(torch.zeros(2, 0).long(), 3, 2)
    u, e = torch.ones(3, 4), torch.ones(0, 4)
    for reduce in ("sum", "max"):
        out, arg_u, arg_e = reference.gspmm(empty, "mul", reduce, u, e)
        assert torch.equal(out, torch.zeros(2, 4))
        assert reduce == "sum" or (arg_u.shape == arg_e.shape == (2, 4))
    assert reference.gsddmm(empty, "add", u, u[:2]).shape == (0, 4)
    assert reference.edge_softmax(empty, e).shape == (0, 4)


def test_bad_arguments() -> None:
    x, w = torch.ones(NUM_SRC, 4), torch.ones(E, 3)
    for call in (
        lambda: reference.gspmm(graph(), "pow", "sum", x, w),
        lambda: reference.gspmm(graph(), "mul", "sum", x, w),
        lambda: reference.gspmm(graph(), "copy_lhs", "prod", x, None),
        lambda: reference.gsddmm(graph(), "dot", x, w, "u", "e"),
        lambda: reference.gsddmm(graph(), "add", x, x, "u", "w"),
        lambda: reference.segment_reduce("prod", x, torch.tensor([0, 7])),
    ):
        with pytest.raises(InvalidArgument):
            call()

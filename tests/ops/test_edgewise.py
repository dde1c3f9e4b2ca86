"""Generalised SDDMM on the emulator, against plain torch in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnn_backend import config
from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops.edgewise import gsddmm
from gnn_backend.profile import profile
from tests.ops.operators import ALL_GRAPHS, DTYPES, OPS, SHAPES, check_gsddmm, draw
from tests.ops.strategies import broadcasting
from tests.ops.support import edges_with_hubs

pytestmark = [pytest.mark.usefixtures("unoptimised"), pytest.mark.sampled(5)]
EDGES, NUM_SRC, NUM_DST = edges_with_hubs()
COUNTS = {"u": NUM_SRC, "v": NUM_DST, "e": EDGES.shape[1]}
TARGETS = tuple(itertools.product("uve", repeat=2))
#: Every (operator, pair of targets), shapes and dtypes in turn.
TABLE = [
    (op, targets, DTYPES[(i + j) % 4], *SHAPES[(3 * i + 5 * j) % len(SHAPES)])
    for i, op in enumerate(OPS)
    for j, targets in enumerate(TARGETS)
]
#: Lengths of dot products: one access, several, single values, and heads that broadcast.
DOTS = [
    ((2, 64), (2, 64)),
    ((128,), (128,)),
    ((8, 8), (8, 8)),
    ((3, 20), (3, 20)),
    ((600,), (600,)),
    ((5, 7), (5, 7)),
    ((45,), (45,)),
    ((1,), (1,)),
    ((2, 1, 8), (3, 8)),
    ((4, 2, 16), (1, 16)),
    ((), ()),
]


def hubs() -> Graph:
    return Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)


def operands(
    targets: tuple[str, str], shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    lhs, rhs = (draw(COUNTS[t], s, dtype, i) for i, (t, s) in enumerate(zip(targets, shapes)))  # noqa: B905
    return lhs, rhs


@pytest.mark.parametrize(("op", "targets", "dtype", "left", "right"), TABLE)
def test_operators_and_targets(
    op: str, targets: tuple[str, str], dtype: torch.dtype, left: tuple[int, ...],
    right: tuple[int, ...], splitting: None,
) -> None:  # fmt: skip
    check_gsddmm(hubs(), EDGES, op, *operands(targets, (left, right), dtype), targets)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("shapes", [((2, 64), (2, 64)), ((5, 7), (5, 7))])
def test_dot_targets(
    targets: tuple[str, str], shapes: tuple[tuple[int, ...], tuple[int, ...]], splitting: None
) -> None:
    check_gsddmm(hubs(), EDGES, "dot", *operands(targets, shapes, torch.float32), targets)


@pytest.mark.parametrize("shapes", DOTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dot_shapes(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype, splitting: None
) -> None:
    check_gsddmm(hubs(), EDGES, "dot", *operands(("u", "v"), shapes, dtype), ("u", "v"))


@pytest.mark.parametrize("name", ALL_GRAPHS)
def test_graphs(name: str, splitting: None) -> None:
    edges, num_src, num_dst = ALL_GRAPHS[name]
    graph = Graph.from_edge_index(edges, num_src, num_dst)
    u, v = draw(num_src, (2, 4), torch.float32), draw(num_dst, (2, 4), torch.float32)
    check_gsddmm(graph, edges, "sub", u, v, ("u", "v"))
    check_gsddmm(graph, edges, "dot", v, u, ("v", "u"))


@pytest.mark.parametrize("chunk", [1, 3, 40, 1000])
@pytest.mark.parametrize("shape", [(3, 4), (2, 64), (2,)])
def test_chunks(chunk: int, shape: tuple[int, ...], split_at: Callable[[int], None]) -> None:
    split_at(chunk)
    for op in ("mul", "dot"):
        lhs, rhs = operands(("u", "v"), (shape, shape), torch.float32)
        check_gsddmm(hubs(), EDGES, op, lhs, rhs, ("u", "v"))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sides=broadcasting(),
    op=st.sampled_from(["add", "mul", "dot"]),
    targets=st.sampled_from(TARGETS),
)
def test_any_broadcasting(
    sides: tuple[tuple[int, ...], tuple[int, ...]], op: str, targets: tuple[str, str],
    splitting: None,
) -> None:  # fmt: skip
    left, right = ((*side, 5) for side in sides) if op == "dot" else sides
    lhs, rhs = operands(targets, (left, right), torch.float32)
    check_gsddmm(hubs(), EDGES, op, lhs, rhs, targets)


def test_csr_without_edge_ids() -> None:
    edges = EDGES[:, EDGES[1].argsort(stable=True)]
    indptr = torch.zeros(NUM_DST + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(edges[1], minlength=NUM_DST).cumsum(0)
    graph = Graph.from_csr(indptr, edges[0], NUM_SRC)
    lhs, rhs = operands(("u", "e"), ((8,), (8,)), torch.float32)
    check_gsddmm(graph, edges, "add", lhs, rhs, ("u", "e"))
    check_gsddmm(graph, edges, "dot", lhs, rhs, ("u", "e"))


def test_64_bit_edge_ids() -> None:
    """As graphs of 2^31 edges have them."""
    graph = hubs()
    csr = graph.by_dst
    assert csr.edge_ids is not None
    csr.indptr, csr._edge_ids = csr.indptr.long(), csr.edge_ids.long()
    lhs, rhs = operands(("u", "e"), ((8,), (8,)), torch.float32)
    check_gsddmm(graph, EDGES, "add", lhs, rhs, ("u", "e"))
    check_gsddmm(graph, EDGES, "dot", lhs, rhs, ("u", "e"))


@pytest.mark.parametrize("op", ["add", "dot"])
def test_no_edges_and_no_columns(op: str) -> None:
    graph = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), 4, 3)
    out = gsddmm(graph, op, torch.ones(4, 2, 5), torch.ones(3, 2, 5))
    assert out.shape == (0, 2, 1 if op == "dot" else 5)
    lhs, rhs = operands(("u", "v"), ((0, 3), (0, 3)), torch.float32)
    assert gsddmm(hubs(), op, lhs, rhs).shape == (EDGES.shape[1], 0, 1 if op == "dot" else 3)


def test_dot_of_nothing_is_zero() -> None:
    lhs, rhs = operands(("u", "v"), ((2, 0), (2, 0)), torch.float32)
    out = gsddmm(hubs(), "dot", lhs, rhs)
    assert out.shape == (EDGES.shape[1], 2, 1) and not out.any()


@pytest.mark.parametrize("op", ["mul", "dot"])
def test_equal_runs_give_equal_bits(op: str, splitting: None) -> None:
    lhs, rhs = torch.randn(NUM_SRC, 2, 64), torch.randn(NUM_DST, 2, 64)
    first = gsddmm(hubs(), op, lhs, rhs)
    for order in ("reversed", "random:1"):
        with config.override(emulator_lane_order=order):
            assert torch.equal(gsddmm(hubs(), op, lhs, rhs), first)


def test_nan_stays_where_it_is(splitting: None) -> None:
    lhs, rhs = operands(("u", "v"), ((8,), (8,)), torch.float32)
    lhs[5, 2] = float("nan")
    for op in ("mul", "dot"):
        out = gsddmm(hubs(), op, lhs, rhs)
        column = out[:, 2] if op == "mul" else out[:, 0]
        assert torch.equal(column.isnan(), EDGES[0] == 5)


def test_one_launch(splitting: None) -> None:
    lhs, rhs = operands(("u", "v"), ((2, 64), (2, 64)), torch.float32)
    for op in ("add", "dot"):
        with profile() as record:
            gsddmm(hubs(), op, lhs, rhs)
        assert list(record.launches.values()) == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "max"}, "op: unknown"),
        ({"lhs_target": "src"}, "lhs_target: unknown"),
        ({"rhs": None}, "rhs: missing"),
        ({"rhs": torch.ones(NUM_SRC, 2)}, "rhs: wrong shape"),
        ({"op": "dot", "rhs": torch.ones(NUM_DST, 3)}, "last dimensions differ"),
        ({"rhs": torch.ones(NUM_DST, 3)}, "trailing shapes do not broadcast"),
        ({"rhs": torch.ones(NUM_DST, 2).double()}, "mixed dtypes"),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    call = {"op": "mul", "lhs": torch.ones(NUM_SRC, 2), "rhs": torch.ones(NUM_DST, 2), **change}
    with pytest.raises(InvalidArgument, match=message):
        gsddmm(hubs(), **call)  # type: ignore[arg-type]

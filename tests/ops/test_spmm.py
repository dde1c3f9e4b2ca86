"""Generalised SpMM on the emulator: values and arguments against plain torch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnn_backend import config
from gnn_backend.errors import InvalidArgument, Unsupported
from gnn_backend.graph import Graph
from gnn_backend.ops.spmm import gspmm
from gnn_backend.profile import profile
from tests.ops.operators import ALL_GRAPHS, FAST, OPS, REDUCES, TABLE, check_gspmm, draw
from tests.ops.strategies import broadcasting
from tests.ops.support import edges_with_hubs

pytestmark = [pytest.mark.usefixtures("unoptimised"), pytest.mark.sampled(5)]
EDGES, NUM_SRC, NUM_DST = edges_with_hubs()


def hubs() -> Graph:
    return Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)


def operands(
    u: tuple[int, ...], e: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    return draw(NUM_SRC, u, dtype, 1), draw(EDGES.shape[1], e, dtype, 2)


@pytest.mark.parametrize(("op", "reduce", "dtype", "u", "e"), TABLE)
def test_shapes(
    op: str, reduce: str, dtype: torch.dtype, u: tuple[int, ...], e: tuple[int, ...],
    splitting: None,
) -> None:  # fmt: skip
    check_gspmm(hubs(), EDGES, op, reduce, *operands(u, e, dtype))


@pytest.mark.parametrize(("op", "reduce", "dtype", "u", "e"), FAST)
def test_fast_layouts(
    op: str, reduce: str, dtype: torch.dtype, u: tuple[int, ...], e: tuple[int, ...],
    splitting: None,
) -> None:  # fmt: skip
    check_gspmm(hubs(), EDGES, op, reduce, *operands(u, e, dtype))


@pytest.mark.parametrize(("op", "reduce", "dtype", "u", "e"), FAST[::5])
def test_long_tasks(
    op: str, reduce: str, dtype: torch.dtype, u: tuple[int, ...], e: tuple[int, ...],
    split_at: Callable[[int], None],
) -> None:  # fmt: skip
    """More edges than a lane group reads ids of at once, whole and split."""
    for chunk in (1000, 40):
        split_at(chunk)
        check_gspmm(hubs(), EDGES, op, reduce, *operands(u, e, dtype))


@pytest.mark.parametrize("name", ALL_GRAPHS)
@pytest.mark.parametrize("reduce", REDUCES)
def test_graphs(name: str, reduce: str, splitting: None) -> None:
    edges, num_src, num_dst = ALL_GRAPHS[name]
    graph = Graph.from_edge_index(edges, num_src, num_dst)
    u = draw(num_src, (2, 4), torch.float32)
    e = draw(edges.shape[1], (2, 1), torch.float32)
    check_gspmm(graph, edges, "mul", reduce, u, e)
    check_gspmm(graph, edges, "mul", reduce, draw(num_dst, (5,), torch.float32),
                e.flatten()[: edges.shape[1]], reverse=True)  # fmt: skip


@pytest.mark.parametrize("reduce", REDUCES)
def test_reverse(reduce: str, splitting: None) -> None:
    u, e = draw(NUM_DST, (8,), torch.float32), draw(EDGES.shape[1], (8,), torch.float32)
    for op in ("copy_lhs", "copy_rhs", "add"):
        check_gspmm(hubs(), EDGES, op, reduce, u, e, reverse=True)


@pytest.mark.parametrize("chunk", [1, 3, 16, 1000])
def test_chunks(chunk: int, split_at: Callable[[int], None]) -> None:
    split_at(chunk)
    for reduce in REDUCES:
        check_gspmm(hubs(), EDGES, "add", reduce, *operands((3,), (3,)))


@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (4, 0), (0, 4), (4, 6)])
@pytest.mark.parametrize("reduce", REDUCES)
def test_no_edges(num_src: int, num_dst: int, reduce: str) -> None:
    edges = torch.zeros(2, 0, dtype=torch.int64)
    graph = Graph.from_edge_index(edges, num_src, num_dst)
    u, e = torch.ones(num_src, 3), torch.ones(0, 3)
    out, arg_u, arg_e = check_gspmm(graph, edges, "mul", reduce, u, e)
    assert out.shape == (num_dst, 3) and not out.any()
    for argument in (arg_u, arg_e):
        assert argument is None or (argument.shape == out.shape and not argument.any())


def test_no_columns() -> None:
    out, _, _ = gspmm(hubs(), "copy_lhs", "sum", torch.ones(NUM_SRC, 0), None)
    assert out.shape == (NUM_DST, 0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_csr_without_edge_ids(dtype: torch.dtype, splitting: None) -> None:
    """Edges are numbered by their place in the CSR."""
    edges = EDGES[:, EDGES[1].argsort(stable=True)]
    indptr = torch.zeros(NUM_DST + 1, dtype=dtype)
    indptr[1:] = torch.bincount(edges[1], minlength=NUM_DST).cumsum(0)
    graph = Graph.from_csr(indptr, edges[0].to(dtype), NUM_SRC)
    for reduce in REDUCES:
        check_gspmm(graph, edges, "mul", reduce, *operands((2, 4), (2, 1)))


def test_64_bit_edge_ids(splitting: None) -> None:
    """As graphs of 2^31 edges have them."""
    graph = hubs()
    csr = graph.by_dst
    assert csr.edge_ids is not None
    csr.indptr, csr._edge_ids = csr.indptr.long(), csr.edge_ids.long()
    for reduce in REDUCES:
        _, _, arg = check_gspmm(graph, EDGES, "mul", reduce, *operands((2, 4), (2, 1)))
        assert arg is None or arg.dtype == torch.int64
        check_gspmm(graph, EDGES, "add", reduce, *operands((3,), (3,)))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_without_arguments(reduce: str, splitting: None) -> None:
    u, e = operands((8,), (8,))
    want, _, _ = gspmm(hubs(), "add", reduce, u, e)
    got = gspmm(hubs(), "add", reduce, u, e, arguments=False)
    assert torch.equal(got[0], want) and got[1] is None and got[2] is None


@pytest.mark.parametrize("width", [3, 128])
def test_equal_runs_give_equal_bits(width: int, splitting: None) -> None:
    u = torch.randn(NUM_SRC, width)
    first = gspmm(hubs(), "copy_lhs", "sum", u, None)[0]
    for order in ("reversed", "random:1"):
        with config.override(emulator_lane_order=order):
            assert torch.equal(gspmm(hubs(), "copy_lhs", "sum", u, None)[0], first)


@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("shape", [(4,), (3,)])
def test_nan_never_wins(reduce: str, shape: tuple[int, ...], splitting: None) -> None:
    u, _ = operands(shape, ())
    u[5] = float("nan")
    out, arg, _ = gspmm(hubs(), "copy_lhs", reduce, u, None)
    alone = torch.bincount(EDGES[1][EDGES[0] != 5], minlength=NUM_DST) == 0
    assert not out.isnan().any() and out[alone].isinf().all()
    assert arg is not None and not arg[alone].any() and not (arg[~alone] == 5).any()
    worst = torch.full((NUM_SRC, *shape), -torch.inf if reduce == "max" else torch.inf)
    out, arg, _ = gspmm(hubs(), "copy_lhs", reduce, worst, None)
    assert arg is not None and out.isinf().all() and not arg.any()


def test_nan_and_infinity_in_sums(splitting: None) -> None:
    u, _ = operands((8,), ())
    u[5, 0], u[7, 1] = float("nan"), float("inf")
    out, _, _ = gspmm(hubs(), "copy_lhs", "sum", u, None)
    want = torch.zeros(NUM_DST, 8).index_add(0, EDGES[1], u[EDGES[0]])
    assert torch.equal(out.isnan(), want.isnan()) and torch.equal(out.isinf(), want.isinf())


def test_strided_and_unaligned_operands(splitting: None) -> None:
    u, e = operands((2, 8), (2, 1))
    want = gspmm(hubs(), "mul", "sum", u, e)[0]
    strided = u.transpose(0, -1).contiguous().transpose(0, -1)
    unaligned = torch.cat([u.new_zeros(1), u.flatten()])[1:].view(u.shape)
    for table in (strided, unaligned):
        assert torch.equal(gspmm(hubs(), "mul", "sum", table, e)[0], want)


@pytest.mark.parametrize("split", [False, True])
def test_launches(split: bool, split_at: Callable[[int], None]) -> None:
    """One, and a merge where rows are split."""
    split_at(8 if split else 1000)
    u, e = operands((128,), ())
    with profile() as record:
        gspmm(hubs(), "mul", "sum", u, e)
        gspmm(hubs(), "mul", "max", u, e)
    names = ["spmm_mul_sum_f32_l32e1k4vf_rh", "spmm_mul_max_f32_l32e1k4vf_rh_arg"]
    names += ["reduce_merge_f32_v4_sum", "reduce_merge_f32_v4_max_arg"] * split
    assert sorted(name for _, name in record.launches) == sorted(names)
    assert set(record.launches.values()) == {1}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(shapes=broadcasting(), op=st.sampled_from(OPS[:4]), reduce=st.sampled_from(REDUCES))
def test_any_broadcasting(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], op: str, reduce: str, splitting: None
) -> None:
    check_gspmm(hubs(), EDGES, op, reduce, *operands(*shapes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "dot"}, "op: unknown"),
        ({"reduce": "prod"}, "reduce: unknown"),
        ({"u": None}, "u: missing"),
        ({"e": torch.ones(3, 2)}, "e: wrong shape"),
        ({"u": torch.ones(NUM_SRC, 3)}, "trailing shapes do not broadcast"),
        ({"u": torch.ones(NUM_SRC, 2, dtype=torch.float64)}, "mixed dtypes"),
        ({"u": torch.ones(NUM_SRC, 2, dtype=torch.int64)}, "u: wrong dtype"),
        ({"u": torch.tensor(1.0)}, "u: wrong shape"),
    ],
)
def test_bad_arguments(change: dict[str, object], message: str) -> None:
    call = {"op": "mul", "reduce": "sum", "u": torch.ones(NUM_SRC, 2),
            "e": torch.ones(EDGES.shape[1], 2), **change}  # fmt: skip
    with pytest.raises(InvalidArgument, match=message):
        gspmm(hubs(), **call)  # type: ignore[arg-type]


def test_cpu_tensors_are_left_to_the_host() -> None:
    with config.override(cpu_target="numba"), pytest.raises(Unsupported) as caught:
        gspmm(hubs(), "copy_lhs", "sum", torch.ones(NUM_SRC, 2), None)
    assert caught.value.reason == "cpu-operators"


def test_calls_of_many_kinds_on_one_graph(splitting: None) -> None:
    """What is kept with the graph for one kind of call is not used for another."""
    graph = hubs()
    kinds = [
        (op, reduce, dtype, e)
        for op, e in (("mul", (2, 4)), ("mul", (1, 1)), ("add", (2, 4)), ("mul", (1, 4)))
        for reduce in ("sum", "mean", "max")
        for dtype in (torch.float32, torch.float64)
    ]
    for op, reduce, dtype, e in [*kinds, *kinds[::-1]]:
        check_gspmm(graph, EDGES, op, reduce, *operands((2, 4), e, dtype))
    plans = [key for key in graph.plans if key[0] in ("spmm", "linear")]
    assert len(plans) == len(set(plans)) >= len(kinds)
    check_gspmm(graph, EDGES, "mul", "max", *operands((2, 4), (2, 4)))
    assert [key for key in graph.plans if key[0] in ("spmm", "linear")] == plans

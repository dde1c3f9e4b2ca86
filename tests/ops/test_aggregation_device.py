"""Aggregation on the emulator: values and all gradients against plain torch in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from gnn_backend import config
from gnn_backend.graph import Graph
from gnn_backend.ops import aggregate
from gnn_backend.profile import profile
from tests.ops.aggregations import (
    LINEAR,
    PNA,
    TABLE,
    Case,
    Row,
    all_worst,
    case,
    case_of,
    check_case,
    gradients,
    largest_of_zero,
    rows_of_equals,
    shares_of_rounded_ties,
    with_specials,
)
from tests.ops.operators import ALL_GRAPHS, draw
from tests.ops.support import edges_with_hubs

pytestmark = [pytest.mark.usefixtures("unoptimised"), pytest.mark.sampled(6)]
EDGES, NUM_SRC, NUM_DST = edges_with_hubs()


@pytest.mark.parametrize("row", [*TABLE, *LINEAR], ids=str)
def test_table(row: Row, splitting: None) -> None:
    check_case(case_of(row))


@pytest.mark.parametrize("row", [TABLE[0], TABLE[6], TABLE[13]], ids=str)
def test_chunks(row: Row, split_at: Callable[[int], None]) -> None:
    """Single edges, hubs of more slots than a warp merges alone, whole rows."""
    for chunk in (1, 3, 40, 1000):
        split_at(chunk)
        check_case(case_of(row))


@pytest.mark.parametrize("name", ALL_GRAPHS)
@pytest.mark.parametrize("ties", ["even", "first"])
def test_graphs(name: str, ties: str, splitting: None) -> None:
    check_case(case(PNA, (4,), None, edges=ALL_GRAPHS[name], ties=ties))


@pytest.mark.parametrize("ties", ["even", "first"])
@pytest.mark.parametrize("nan", ["propagate", "skip"])
def test_nan_and_infinity(ties: str, nan: str, splitting: None) -> None:
    check_case(with_specials(case(("max", "min"), (4,), ties=ties, nan=nan)))


@pytest.mark.parametrize("reduce", ["sum", "mul", "softmax", "std", "mean"])
def test_nan_and_infinity_in_sums(reduce: str, splitting: None) -> None:
    """At the same places; what is next to an infinity may be one or a NaN."""
    c = with_specials(case(reduce, (4,)))
    with torch.no_grad():
        c.x[7, 1] = c.x[9, 2] = 1.0  # an infinity is NaN or infinite by the order of the sum
    check_case(c)


def test_shares_of_rounded_ties(splitting: None) -> None:
    shares_of_rounded_ties()


def test_deviation_of_equals(splitting: None) -> None:
    rows_of_equals()


@pytest.mark.parametrize("ties", ["even", "first"])
def test_extremes_of_zero(ties: str, splitting: None) -> None:
    """torch counts the 0 that it starts with among the ties."""
    check_case(largest_of_zero(case(("max", "min"), (4,), ties=ties)))


def test_all_worst(splitting: None) -> None:
    """Rows of nothing but -inf, and NaN that never win."""
    for nan, worst in (("propagate", -torch.inf), ("skip", 0.0)):
        for ties in ("even", "first"):
            (out,), _ = check_case(all_worst(nan, ties))
            assert (out[0] == worst).all() and (out[2] == 0).all()


def test_only_some_gradients(splitting: None) -> None:
    """Results that nobody used cost no tables; operands that want no gradient get none."""
    c = case(PNA, (4,), (4,), message="mul")
    assert c.edge is not None
    out = c.call()
    (alone,) = torch.autograd.grad(out[1].sum(), c.x, retain_graph=True)
    frozen = dataclasses.replace(c, edge=c.edge.detach())
    (again,) = torch.autograd.grad(frozen.call()[1].sum(), c.x)
    assert torch.equal(alone, again)
    fixed = dataclasses.replace(c, x=c.x.detach())
    assert gradients(fixed, fixed.call()).keys() == {"edge"}
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(c.call(), out, strict=True))


def test_second_derivatives(splitting: None) -> None:
    """Through plain torch, on the same tensors."""
    c = case(("sum", "var", "max"), (3,), (3,), torch.float64, "mul")
    assert c.edge is not None
    firsts = torch.autograd.grad(c.call()[1].sum(), c.x, create_graph=True)
    (second,) = torch.autograd.grad(firsts[0].pow(2).sum(), c.edge)
    assert second.isfinite().all() and second.any()


def test_strided_and_unaligned_operands(splitting: None) -> None:
    c = case(("max", "sum"), (8,), (8,), message="mul")
    assert c.edge is not None
    want = c.call()
    strided = c.x.detach().t().contiguous().t()
    unaligned = torch.cat([c.x.new_zeros(1), c.x.detach().flatten()])[1:].view(c.x.shape)
    for x in (strided, unaligned):
        got = dataclasses.replace(c, x=x).call()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_csr_without_edge_ids(dtype: torch.dtype, splitting: None) -> None:
    edges = EDGES[:, EDGES[1].argsort(stable=True)]
    indptr = torch.zeros(NUM_DST + 1, dtype=dtype)
    indptr[1:] = torch.bincount(edges[1], minlength=NUM_DST).cumsum(0)
    graph = Graph.from_csr(indptr, edges[0].to(dtype), NUM_SRC)
    for ties in ("even", "first"):
        c = case(("max", "sum"), (4,), (4,), message="mul", ties=ties)
        check_case(dataclasses.replace(c, graph=graph))


def test_64_bit_edge_ids(splitting: None) -> None:
    """As graphs of 2^31 edges have them."""
    for ties in ("even", "first"):
        c = case(("max", "min", "mean"), (4,), (), message="mul", ties=ties)
        csr, back = c.graph.by_dst, c.graph.by_src
        for side in (csr, back):
            assert side.edge_ids is not None
            side.indptr, side._edge_ids = side.indptr.long(), side.edge_ids.long()
        check_case(c)


def test_rows_by_source_in_the_order_of_edges(splitting: None) -> None:
    graph = Graph.from_edges(EDGES[0], EDGES[1], NUM_SRC, NUM_DST)
    for ties in ("even", "first"):
        c = case(("max", "mean"), (4,), (4,), message="add", ties=ties)
        check_case(dataclasses.replace(c, graph=graph))


def test_equal_runs_give_equal_bits(splitting: None) -> None:
    def run() -> list[torch.Tensor]:
        c = case((*PNA, "softmax"), (12,), (12,), message="mul")
        with torch.no_grad():
            c.x += torch.randn(c.x.shape, generator=torch.Generator().manual_seed(3))
        out = c.call()
        return [*out, *gradients(c, out).values()]

    first = run()
    for order in ("reversed", "random:1"):
        with config.override(emulator_lane_order=order):
            assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))


def launches(c: Case) -> tuple[list[str], list[str]]:
    """Kernels of the forward and of the backward pass, without their layouts."""
    found = []
    with profile() as record:
        out = c.call()
    found.append(record)
    with profile() as record:
        gradients(c, out)
    found.append(record)
    forward, backward = (sorted(n for _, n in r.launches) for r in found)
    return forward, backward


@pytest.mark.parametrize("split", [False, True])
def test_one_pass(split: bool, split_at: Callable[[int], None]) -> None:
    """One launch each way, and a merge where rows are split."""
    split_at(8 if split else 1000)
    forward, backward = launches(case(PNA, (128,)))
    assert forward == ["aggregate_copy_14f_f32_l32e1k4vf_n",
                       "aggregate_merge_14f_f32_v4"][: 1 + split]  # fmt: skip
    assert backward == ["aggregate_backward_copy_10f_f32_l32e1k4vf_n",
                        "reduce_merge_f32_v4_sum"][: 1 + split]  # fmt: skip


def test_sums_alone_run_on_the_generalised_spmm(split_at: Callable[[int], None]) -> None:
    split_at(1000)
    forward, backward = launches(case("mean", (128,), (), message="mul"))
    assert forward == ["spmm_mul_sum_f32_l32e1k4vf_rh"]
    assert [name.split("_")[0] for name in backward] == ["sddmm", "spmm"]


def test_no_edges_and_no_columns() -> None:
    graph = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), 3, 5)
    assert (aggregate(graph, torch.ones(3, 2), "mul") == 1).all()
    hubs = Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)
    x = torch.ones(NUM_SRC, 0, requires_grad=True)
    out = aggregate(hubs, x, "max")
    assert out.shape == (NUM_DST, 0)
    assert torch.autograd.grad(out.sum(), x)[0].shape == x.shape


def test_plans_are_kept_with_the_graph(splitting: None) -> None:
    c = case(("max", "sum"), (4,))
    for _ in range(2):
        check_case(c)
        kept = set(c.graph.plans)
    other = dataclasses.replace(c, x=draw(NUM_SRC, (6,), torch.float32).requires_grad_())
    check_case(other)
    assert kept < set(c.graph.plans)

"""Softmax over the edges of a row on the emulator, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gnn_backend import config
from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops.edge_softmax import edge_softmax, edge_softmax_backward
from gnn_backend.profile import profile
from tests.ops.operators import ALL_GRAPHS, DTYPES, check_edge_softmax, draw, softmax_oracle
from tests.ops.support import edges_with_hubs

pytestmark = [pytest.mark.usefixtures("unoptimised"), pytest.mark.sampled(5)]
EDGES, NUM_SRC, NUM_DST = edges_with_hubs()
COUNT = EDGES.shape[1]


def hubs() -> Graph:
    return Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (2,), (8,), (4, 1), (3, 5), (130,)])
def test_shapes(shape: tuple[int, ...], dtype: torch.dtype, norm_by: str, splitting: None) -> None:
    check_edge_softmax(
        hubs(), EDGES, draw(COUNT, shape, dtype, 1), draw(COUNT, shape, dtype, 2), norm_by
    )


@pytest.mark.parametrize("name", ALL_GRAPHS)
@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_graphs(name: str, norm_by: str, splitting: None) -> None:
    edges, num_src, num_dst = ALL_GRAPHS[name]
    graph = Graph.from_edge_index(edges, num_src, num_dst)
    logits = draw(edges.shape[1], (2,), torch.float32)
    check_edge_softmax(graph, edges, logits, logits.flip(0), norm_by)


@pytest.mark.parametrize("chunk", [1, 3, 40, 1000])
@pytest.mark.parametrize("shape", [(), (3,), (130,)])
def test_chunks(chunk: int, shape: tuple[int, ...], split_at: Callable[[int], None]) -> None:
    split_at(chunk)
    logits = draw(COUNT, shape, torch.float32)
    check_edge_softmax(hubs(), EDGES, logits, logits.flip(0), "dst")


def test_64_bit_edge_ids(splitting: None) -> None:
    graph = hubs()
    csr = graph.by_dst
    assert csr.edge_ids is not None
    csr.indptr, csr._edge_ids = csr.indptr.long(), csr.edge_ids.long()
    logits = draw(COUNT, (4,), torch.float32)
    check_edge_softmax(graph, EDGES, logits, logits.flip(0), "dst")


def test_weighted_gradient(splitting: None) -> None:
    """The product of output and gradient, which some callers have at hand."""
    logits, grad = torch.randn(COUNT, 4), torch.randn(COUNT, 4)
    out = edge_softmax(hubs(), logits)
    want = edge_softmax_backward(hubs(), out, grad)
    got = edge_softmax_backward(hubs(), out, out * grad, weighted=True)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


def test_no_edges_and_no_columns() -> None:
    graph = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), 4, 3)
    assert edge_softmax(graph, torch.ones(0, 2)).shape == (0, 2)
    assert edge_softmax(hubs(), torch.ones(COUNT, 0)).shape == (COUNT, 0)


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_rows_sum_to_one(norm_by: str, splitting: None) -> None:
    out = edge_softmax(hubs(), 30 * torch.randn(COUNT), norm_by)
    ends, rows = (EDGES[1], NUM_DST) if norm_by == "dst" else (EDGES[0], NUM_SRC)
    sums = torch.zeros(rows).index_add(0, ends, out)
    torch.testing.assert_close(sums, (torch.bincount(ends, minlength=rows) > 0).float())


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_large_logits(shift: float, splitting: None) -> None:
    logits = 3 * torch.randn(COUNT, 2) + shift
    want = softmax_oracle(EDGES, NUM_DST, logits.double(), 1)
    torch.testing.assert_close(edge_softmax(hubs(), logits).double(), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "lowest"])
@pytest.mark.parametrize("row", [3, 7])
def test_not_finite_as_torch(
    value: float | str, row: int, dtype: torch.dtype, splitting: None
) -> None:
    """One edge, and every edge of the row, which is a hub (3) or is not."""
    own = (EDGES[1] == row).nonzero().flatten()
    for edges in (own[:1], own):
        logits = torch.randn(COUNT, 2, dtype=dtype)
        logits[edges, 0] = torch.finfo(dtype).min if isinstance(value, str) else value
        want = softmax_oracle(EDGES, NUM_DST, logits, 1)
        got = edge_softmax(hubs(), logits)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_equal_runs_give_equal_bits(splitting: None) -> None:
    logits = torch.randn(COUNT, 3)
    first = edge_softmax(hubs(), logits)
    for order in ("reversed", "random:1"):
        with config.override(emulator_lane_order=order):
            assert torch.equal(edge_softmax(hubs(), logits), first)


@pytest.mark.parametrize("split", [False, True])
def test_at_most_three_launches(split: bool, split_at: Callable[[int], None]) -> None:
    split_at(8 if split else 1000)
    logits = torch.randn(COUNT, 2)
    with profile() as forward:
        out = edge_softmax(hubs(), logits)
    with profile() as backward:
        edge_softmax_backward(hubs(), out, logits)
    for record in (forward, backward):
        assert sum(record.launches.values()) == (3 if split else 2)


def test_bad_arguments() -> None:
    for call, message in (
        (lambda: edge_softmax(hubs(), torch.ones(3)), "logits: wrong shape"),
        (lambda: edge_softmax(hubs(), torch.ones(COUNT), "both"), "norm_by: unknown"),
        (lambda: edge_softmax_backward(hubs(), torch.ones(COUNT, 2), torch.ones(COUNT, 3)),
         "grad: does not fit out"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match=message):
            call()

"""Aggregation on CUDA against plain torch in float64, and each run against the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from gnn_backend.graph import Graph
from gnn_backend.profile import profile
from gnn_backend.runtime.sparse import rows as sparse_rows
from tests.gpu import support
from tests.gpu.support import table
from tests.gpu.test_attention import heavy_tailed
from tests.ops.aggregations import (
    LINEAR,
    PNA,
    TABLE,
    Row,
    case,
    case_of,
    check_case,
    gradients,
    shares_of_rounded_ties,
    with_specials,
)
from tests.ops.operators import ALL_GRAPHS

pytestmark = support.MARKS
DEVICE = support.DEVICE


def chunks_of(length: int) -> AbstractContextManager[Any]:
    """Cut rows into tasks of so many edges."""
    return mock.patch.object(sparse_rows, "chunk_of", lambda *_: length)


@table("row", [[row] for row in (*TABLE, *LINEAR)])
def test_table(row: list[Row]) -> None:
    for chunk in (3, 8, 1000):
        with chunks_of(chunk), profile() as record:
            check_case(case_of(row[0], DEVICE))
        assert {target for target, _ in record.launches} == {"cuda"}


@table("name", ALL_GRAPHS)
@table("ties", ["even", "first"])
def test_graphs(name: str, ties: str) -> None:
    with chunks_of(8):
        check_case(case(PNA, (4,), None, edges=ALL_GRAPHS[name], ties=ties, device=DEVICE))


@table("ties", ["even", "first"])
@table("nan", ["propagate", "skip"])
def test_nan_and_infinity(ties: str, nan: str) -> None:
    with chunks_of(8):
        check_case(with_specials(case(("max", "min"), (4,), ties=ties, nan=nan, device=DEVICE)))


def test_shares_of_rounded_ties() -> None:
    with chunks_of(8):
        shares_of_rounded_ties(DEVICE)


@table("dtype", [torch.float32, torch.bfloat16])
@table("shape", [(128,), (47,)])
@table("ties", ["even", "first"])
def test_a_graph_of_real_size(dtype: torch.dtype, shape: tuple[int, ...], ties: str) -> None:
    """With the shipped chunks and grids; three runs give the same bits."""
    edges, num_src, num_dst = heavy_tailed()
    graph = Graph.from_edge_index(edges.to(DEVICE), num_src, num_dst)

    def run() -> list[torch.Tensor]:
        c = case(PNA, shape, None, dtype, edges=(edges, num_src, num_dst), ties=ties,
                 device=DEVICE)  # fmt: skip
        c = dataclasses.replace(c, graph=graph)
        out = c.call()
        return [*out, *gradients(c, out).values()]

    first = run()
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))
    c = case(PNA, shape, None, dtype, edges=(edges, num_src, num_dst), ties=ties, device=DEVICE)
    check_case(dataclasses.replace(c, graph=graph), factor=4)


def captured(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    recording = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recording):
        step()
    return recording


def test_captured_in_a_cuda_graph() -> None:
    """Nothing waits for the device once the graph's parts are built."""
    c = case((*PNA, "softmax"), (64,), (), message="mul", device=DEVICE)
    with torch.no_grad():
        want = c.call()
        kept: list[tuple[torch.Tensor, ...]] = []
        recording = captured(lambda: kept.append(c.call()))
        for scale in (1.0, 2.0):
            c.x.mul_(scale)
            recording.replay()
            want = c.call()
            assert all(torch.equal(a, b) for a, b in zip(kept[0], want, strict=True))


def test_rows_past_two_to_the_31_elements() -> None:
    """Node tables of over 2^31 values, in bfloat16."""
    width, count = 1024, (1 << 21) + 50
    support.needs_memory(14 * count * width * 2)
    far = torch.tensor([3, count - 40, count - 1], device=DEVICE)
    edges = far[torch.tensor([[0, 1, 2, 2, 1], [1, 2, 0, 2, 2]], device=DEVICE)]
    graph = Graph.from_edge_index(edges, count, count)
    x = torch.zeros(count, width, dtype=torch.bfloat16, device=DEVICE)
    x[far] = torch.randn(3, width, device=DEVICE).bfloat16()
    x.requires_grad_()
    from gnn_backend.ops import aggregate

    out = aggregate(graph, x, "max")
    best = torch.maximum(x[far[1]], x[far[2]])
    assert torch.equal(out[far[1]], x[far[0]]) and torch.equal(out[far[2]], best)
    (grad,) = torch.autograd.grad(out[far].float().sum(), x)
    assert grad[far[0]].float().sum() == width and not grad[4 : count - 41].any()

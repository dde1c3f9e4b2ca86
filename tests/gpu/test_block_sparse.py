"""Attention over tiles on CUDA: the format, output and every gradient against float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from gnn_backend import datasets
from gnn_backend.graph import Graph
from gnn_backend.profile import profile
from gnn_backend.runtime.block_units import DIMS
from tests.gpu import support
from tests.gpu.support import table
from tests.ops.support import same_bits
from tests.runtime.block_cases import DTYPES, GRAPHS, check, problem, reference, run

pytestmark = support.MARKS


@contextlib.contextmanager
def allowing_tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@table("name", GRAPHS)
@table("dtype", DTYPES)
def test_graphs(name: str, dtype: torch.dtype) -> None:
    with allowing_tf32(), profile() as record:
        p = problem(GRAPHS[name], 2, 64, dtype, device=support.DEVICE)
        got = check(p)
        assert same_bits(got, run(p))
    assert {target for target, _ in record.launches} == {"cuda"}


@table("dim", DIMS)
@table("dtype", DTYPES)
def test_head_dimensions(dim: int, dtype: torch.dtype) -> None:
    with allowing_tf32():
        check(problem(GRAPHS["duplicates"], 3, dim, dtype, device=support.DEVICE))


@table("dtype", DTYPES)
def test_large_graphs_with_hubs(dtype: torch.dtype) -> None:
    """Windows of many tasks, and rows of many more neighbours than a window has columns."""
    edges = torch.cat([
        datasets.block_model(3000, 256, 0.5),
        datasets.rmat(3000, 60_000),
        torch.stack([torch.arange(3000), torch.full((3000,), 7)]),
    ], 1)  # fmt: skip
    with allowing_tf32():
        p = problem((edges, 3000, 3000), 2, 64, dtype, device=support.DEVICE)
        got = check(p)
        assert p.graph.block_sparse("dst").splits.num_slots
        assert same_bits(got, run(p))


@table("direction", ["dst", "src"])
def test_the_format_is_that_of_the_cpu(direction: str) -> None:
    edges = torch.cat([datasets.block_model(2000, 100, 0.3), datasets.rmat(2000, 50_000)], 1)
    there = Graph.from_edge_index(edges.to(support.DEVICE), 2000, 2000).block_sparse(direction)
    here = Graph.from_edge_index(edges, 2000, 2000).block_sparse(direction)
    for name in ("columns", "masks", "occupied"):
        assert torch.equal(getattr(there, name).cpu(), getattr(here, name)), name
    assert there.splits.num_slots == here.splits.num_slots


def test_a_nan_reaches_its_neighbours_alone() -> None:
    p = problem(GRAPHS["block model"], 2, 64, torch.bfloat16, device=support.DEVICE)
    p.v[3, 0, 2] = float("inf")
    p.k[25, 1, 5] = float("nan")
    p.grad[7, 0, 1] = float("nan")
    got, (want, _) = run(p), reference(p)
    for name in ("out", "q", "k", "v"):
        assert torch.equal(got[name].isnan(), want[name].isnan()), name

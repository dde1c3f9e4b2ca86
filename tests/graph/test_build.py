"""The sorts: the CUDA form (plain torch, so it runs on CPU tensors too) against the CPU form,
and graphs whose offsets need 64 bits, on a small graph by lowering the limit."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph, build, checks, counting_sort
from tests.graph.support import (
    EDGES,
    NUM_DST,
    NUM_SRC,
    by_destination,
    by_source,
    edge_index,
    rows_of,
    unpack,
)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_edges", [0, 1, 300])
def test_radix_sort_groups_as_the_counting_sort_does(num_edges: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(num_edges)
    keys = torch.randint(0, 20, (num_edges,), generator=generator, dtype=dtype)
    values = torch.randint(0, 50, (num_edges,), generator=generator, dtype=dtype)
    *expected, bad = counting_sort.group_cpu(keys, values, 23)
    assert bad == -1
    for got, want in zip(build.group_cuda(keys, values, 23), expected, strict=True):
        assert got.dtype == want.dtype == torch.int32 and torch.equal(got, want)


def test_radix_sort_survives_keys_out_of_range() -> None:
    keys = torch.tensor([5, -1, 0, 99])
    indptr, _, _ = build.group_cuda(keys, keys, 3)
    assert indptr.numel() == 4 and int(indptr.max()) <= 4


def test_counting_sort_names_the_first_bad_key() -> None:
    keys = torch.tensor([0, 2, 3, -1])
    assert counting_sort.group_cpu(keys, keys, 3)[3] == 2
    assert counting_sort.group_cpu(keys, keys, 4)[3] == 3


@pytest.mark.parametrize("limit", [1, 10**9])
def test_expand_rows(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting_sort, "INT32_MAX", limit)
    for indptr in (torch.tensor([0, 2, 2, 3]), torch.tensor([0, 2, 2, 3], dtype=torch.int32)):
        rows = build.expand_rows(indptr, 3)
        assert rows.dtype == torch.int32 and rows.tolist() == [0, 0, 2]


def test_first_out_of_range() -> None:
    assert build.first_out_of_range(torch.tensor([0, 1, 2]), 3) == -1
    assert build.first_out_of_range(torch.tensor([0, 3, -1]), 3) == 1
    assert build.first_out_of_range(torch.tensor([0, 2, -1]), 3) == 2


def test_offsets_need_64_bits_from_two_to_the_31() -> None:
    assert build.index_dtype(2**31 - 1) == torch.int32
    assert build.index_dtype(2**31) == torch.int64


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets count as too large for int32 from 6 edges on."""
    monkeypatch.setattr(build, "INT32_MAX", 5)
    monkeypatch.setattr(counting_sort, "INT32_MAX", 5)


@pytest.mark.parametrize("source", ["edge_index", "csr"])
def test_wide_offsets(source: str, wide: None) -> None:
    graph = Graph.from_edge_index(edge_index(), NUM_SRC, NUM_DST)
    if source == "csr":
        csr = graph.by_dst
        graph = Graph.from_csr(csr.indptr.int(), csr.indices, NUM_SRC, csr.edge_ids.int())
    for csr, rows in ((graph.by_dst, by_destination(EDGES, NUM_DST)),
                      (graph.by_src, by_source(EDGES, NUM_SRC, NUM_DST))):  # fmt: skip
        assert csr.indptr.dtype == csr.edge_ids.dtype == torch.int64
        assert csr.indices.dtype == torch.int32
        assert rows_of(csr) == rows
    tasks = unpack(graph.splits("dst", 2))
    assert tasks[:4] == [(0, -1, 0, 0), (1, 0, 0, 2), (1, 1, 2, 1), (2, -1, 3, 1)]
    keys = edge_index()[1]
    assert build.group_cuda(keys, keys, NUM_DST)[0].dtype == torch.int64


@pytest.mark.parametrize("num_src", [NUM_SRC, NUM_DST + 20])
@pytest.mark.parametrize("num_dst", [NUM_DST, NUM_DST + 20])  # equal at last
def test_device_counts_are_those_of_the_splits(num_src: int, num_dst: int) -> None:
    """``cuda_counts`` is plain torch: what it predicts on the CPU is what it predicts there."""
    src, dst = edge_index()
    src, dst = src.repeat(40), dst.repeat(40)  # so that rows are split
    graph = Graph.from_edge_index(torch.stack([src, dst]), num_src, num_dst)
    counts = checks.cuda_counts(graph.by_dst.indptr, src, dst, num_src, num_dst)
    assert len(counts) == 2 * len(checks._COMMON_CHUNKS)
    for (direction, chunk), sizes in counts.items():
        splits = graph.splits(direction, chunk)
        assert sizes == (splits.num_tasks, splits.num_slots, splits.heavy_rows.numel())


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(0, 0), (6, 0)], "source of edge 1 out of range; got 6"),
        ([(-1, 0), (0, 0)], "source of edge 0 out of range; got -1"),
        ([(0, 0), (0, 5)], "destination of edge 1 out of range; got 5"),
        ([(0, -2)], "destination of edge 0 out of range; got -2"),
    ],
)
def test_device_counts_check_the_ids(edges: list[tuple[int, int]], message: str) -> None:
    src, dst = edge_index(edges)
    indptr, _, _ = build.group_cuda(dst, src, NUM_DST)
    with pytest.raises(InvalidArgument, match=message):
        checks.cuda_counts(indptr, src, dst, NUM_SRC, NUM_DST)

"""Row splits: every edge in one task, partial slots in order, the packed layout."""

from __future__ import annotations

import itertools

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from gnn_backend.graph import Graph, Splits
from gnn_backend.graph.splits import bound_splits, count_splits, make_splits
from tests.graph.support import edge_index, unpack


def graph_of(degrees: list[int]) -> Graph:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return Graph.from_csr(indptr, torch.zeros(sum(degrees), dtype=torch.int64), 1)


def check(splits: Splits, indptr: list[int], chunk: int) -> None:
    tasks, slots, heavy = unpack(splits), 0, []
    at = 0
    for row, (begin, end) in enumerate(itertools.pairwise(indptr)):
        pieces = max(1, -(-(end - begin) // chunk))
        split = pieces > 1
        for piece in range(pieces):
            start = begin + piece * chunk
            slot = slots + piece if split else -1
            assert tasks[at] == (row, slot, start, min(chunk, end - start))
            at += 1
        if split:
            heavy.append((row, slots, slots + pieces))
            slots += pieces
    assert at == len(tasks) == splits.num_tasks
    assert splits.num_slots == slots
    ptr = splits.heavy_ptr.tolist()
    assert list(zip(splits.heavy_rows.tolist(), ptr[:-1], ptr[1:], strict=True)) == heavy
    assert ptr[-1] == slots


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 8, 9, 32767])
def test_chunks_around_the_degrees(chunk: int) -> None:
    graph = graph_of([0, 8, 1, 7, 0, 17, 9, 16, 0])
    splits = graph.splits("dst", chunk)
    assert splits.chunk == chunk
    check(splits, graph.by_dst.indptr.tolist(), chunk)


@pytest.mark.parametrize("degrees", [[], [0], [0, 0, 0], [5]])
def test_small_graphs(degrees: list[int]) -> None:
    graph = graph_of(degrees)
    check(graph.splits("dst", 2), graph.by_dst.indptr.tolist(), 2)


def test_the_largest_chunk_keeps_the_packed_count_positive() -> None:
    graph = graph_of([70_000])
    counts = [count for *_, count in unpack(graph.splits("dst", 32767))]
    assert counts == [32767, 32767, 4466]
    assert int(graph.splits("dst", 32767).tasks[0, 3]) > 0


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 20))
def test_any_degrees(degrees: list[int], chunk: int) -> None:
    graph = graph_of(degrees)
    check(graph.splits("dst", chunk), graph.by_dst.indptr.tolist(), chunk)


def test_by_source() -> None:
    graph = Graph.from_edge_index(edge_index([(1, 0), (1, 2), (1, 1), (0, 2)]), 3, 3)
    splits = graph.splits("src", 2)
    check(splits, graph.by_src.indptr.tolist(), 2)
    assert splits.heavy_rows.tolist() == [1]


def test_offsets_past_32_bits_are_packed() -> None:
    begin = 2**33 + 5
    splits = make_splits(torch.tensor([begin, begin + 3]), 2, 2, 2, 1)
    assert unpack(splits) == [(0, 0, begin, 2), (0, 1, begin + 2, 1)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_counts_of_the_largest_degree(dtype: torch.dtype) -> None:
    most = 2**31 - 1
    sizes = count_splits(torch.tensor([most, 0, 64], dtype=dtype), (64, 32767))
    pieces = [-(-most // 64), -(-most // 32767)]
    assert sizes.tolist() == [[p + 2, p, 1] for p in pieces]


def test_bytes() -> None:
    splits = graph_of([3, 1]).splits("dst", 2)
    assert splits.nbytes() == 4 * (3 * 4 + 1 + 2)


@pytest.mark.parametrize("chunk", [1, 2, 3, 8, 100])
@pytest.mark.parametrize(
    "degrees", [[], [0], [5], [0, 8, 1, 7, 0, 17, 9, 16, 0], [100], [3] * 40, [1, 99], [2, 2, 2]]
)
def test_padded_splits_are_the_exact_ones_and_tasks_of_nobody(
    degrees: list[int], chunk: int
) -> None:
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    exact = make_splits(indptr, chunk, *count_splits(indptr.diff(), (chunk,))[0].tolist())
    rows, edges = len(degrees), sum(degrees)
    padded = make_splits(torch.cat([indptr, indptr[-1:]]), chunk,
                         *bound_splits(rows, edges, chunk), padded=True)  # fmt: skip
    assert padded.num_slots >= exact.num_slots
    found = unpack(padded)
    assert found[: exact.num_tasks] == unpack(exact)
    for row, slot, _, count in found[exact.num_tasks :]:
        assert (row, slot, count) == (rows, -1, 0)
    heavy = exact.heavy_rows.numel()
    assert torch.equal(padded.heavy_rows[:heavy], exact.heavy_rows)
    assert torch.equal(padded.heavy_ptr[: heavy + 1], exact.heavy_ptr)
    assert padded.heavy_rows[heavy:].eq(rows).all()
    assert padded.heavy_ptr[heavy:].eq(exact.num_slots).all(), (
        "no slots are merged into the padding"
    )

"""Conventions of Graph: both directions, edge order, edge ids, dtypes, sizes."""

from __future__ import annotations

import gc

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import CSR, Graph
from tests.graph.support import (
    EDGES,
    NUM_DST,
    NUM_SRC,
    by_destination,
    by_source,
    edge_index,
    rows_of,
)


def make(dtype: torch.dtype = torch.int64) -> Graph:
    return Graph.from_edge_index(edge_index(dtype=dtype), NUM_SRC, NUM_DST)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_by_destination_and_by_source(dtype: torch.dtype) -> None:
    graph = make(dtype)
    assert (graph.num_src, graph.num_dst, graph.num_edges) == (NUM_SRC, NUM_DST, len(EDGES))
    assert rows_of(graph.by_dst) == by_destination(EDGES, NUM_DST)
    assert rows_of(graph.by_src) == by_source(EDGES, NUM_SRC, NUM_DST)
    assert graph.csr("dst") is graph.by_dst and graph.csr("src") is graph.by_src


@pytest.mark.parametrize("direction", ["dst", "src"])
def test_kernels_get_contiguous_int32(direction: str) -> None:
    csr = make().csr(direction)
    for tensor in (csr.indptr, csr.indices, csr.edge_ids):
        assert tensor.dtype == torch.int32 and tensor.is_contiguous()


def test_columns_of_a_row_major_list_are_read_right() -> None:
    pairs = torch.tensor(EDGES)  # [E, 2]: its transpose has strides (1, 2)
    graph = Graph.from_edge_index(pairs.t(), NUM_SRC, NUM_DST)
    assert rows_of(graph.by_dst) == by_destination(EDGES, NUM_DST)


def test_node_counts_default_to_the_largest_ids() -> None:
    graph = Graph.from_edge_index(edge_index())
    assert (graph.num_src, graph.num_dst) == (5, 4)
    assert repr(graph) == "Graph(num_src=5, num_dst=4, num_edges=8, device='cpu')"


@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (3, 0), (0, 2), (3, 2)])
def test_no_edges(num_src: int, num_dst: int) -> None:
    graph = Graph.from_edge_index(edge_index([]), num_src, num_dst)
    assert graph.num_edges == 0
    assert graph.by_dst.indptr.tolist() == [0] * (num_dst + 1)
    assert graph.by_src.indptr.tolist() == [0] * (num_src + 1)
    assert graph.by_src.edge_ids is not None and graph.by_src.edge_ids.numel() == 0
    assert (Graph.from_edge_index(edge_index([])).num_src) == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("edge_ids", [None, [3, 0, 4, 1, 2]])
def test_from_csr(dtype: torch.dtype, edge_ids: list[int] | None) -> None:
    indptr = torch.tensor([0, 2, 2, 5], dtype=dtype)
    indices = torch.tensor([1, 0, 3, 1, 3], dtype=dtype)
    ids = None if edge_ids is None else torch.tensor(edge_ids, dtype=dtype)
    graph = Graph.from_csr(indptr, indices, 4, ids)
    numbers = edge_ids or [0, 1, 2, 3, 4]
    others = [1, 0, 3, 1, 3]
    pairs = list(zip(others, numbers, strict=True))
    assert rows_of(graph.by_dst) == [pairs[:2], [], pairs[2:]]
    assert (graph.num_src, graph.num_dst) == (4, 3)
    assert (graph.by_dst.edge_ids is None) == (edge_ids is None)
    by_src = [[(0, 1)], [(0, 0), (2, 3)], [], [(2, 2), (2, 4)]]
    assert rows_of(graph.by_src) == [[(r, numbers[k]) for r, k in row] for row in by_src]


def test_from_csr_counts_sources_by_default() -> None:
    graph = Graph.from_csr(torch.tensor([0, 1]), torch.tensor([6]))
    assert (graph.num_src, graph.num_dst) == (7, 1)
    assert Graph.from_csr(torch.tensor([0]), torch.tensor([], dtype=torch.int64)).num_dst == 0


def test_from_csr_takes_strided_tensors() -> None:
    indptr, indices = torch.tensor([[0, 9], [1, 9], [3, 9]]), torch.tensor([[1, 9], [0, 9], [2, 9]])
    graph = Graph.from_csr(indptr[:, 0], indices[:, 0], 3)
    assert rows_of(graph.by_dst) == [[(1, 0)], [(0, 1), (2, 2)]]
    assert graph.by_dst.indices.is_contiguous() and graph.by_dst.indptr.is_contiguous()


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]]]:
    num_src, num_dst = draw(st.integers(0, 7)), draw(st.integers(0, 7))
    if not num_src or not num_dst:
        return num_src, num_dst, []
    pair = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    return num_src, num_dst, draw(st.lists(pair, max_size=30))


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(edge_lists(), st.sampled_from([torch.int32, torch.int64]))
def test_any_edge_list(case: tuple[int, int, list[tuple[int, int]]], dtype: torch.dtype) -> None:
    num_src, num_dst, edges = case
    graph = Graph.from_edge_index(edge_index(edges, dtype), num_src, num_dst)
    assert rows_of(graph.by_dst) == by_destination(edges, num_dst)
    assert rows_of(graph.by_src) == by_source(edges, num_src, num_dst)
    again = Graph.from_csr(
        graph.by_dst.indptr, graph.by_dst.indices, num_src, graph.by_dst.edge_ids
    )
    assert rows_of(again.by_src) == rows_of(graph.by_src)


@pytest.mark.parametrize("name", ["num_src", "num_dst", "num_edges", "device", "by_dst", "by_src"])
def test_attributes_cannot_be_set(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(make(), name, None)


def test_the_callers_edge_index_is_not_kept() -> None:
    edges = edge_index()
    graph = Graph.from_edge_index(edges, NUM_SRC, NUM_DST)
    edges.zero_()
    assert rows_of(graph.by_src) == by_source(EDGES, NUM_SRC, NUM_DST)
    assert isinstance(graph.by_dst, CSR)


# ---------------------------------------------------------------------- kept ends, reversal


def by_both(src: torch.Tensor, dst: torch.Tensor, num_src: int, num_dst: int) -> list[torch.Tensor]:
    """indptr, other endpoint and edge ids of both directions, rows in the order of the edges."""
    found = []
    for keys, values, rows in ((dst, src, num_dst), (src, dst, num_src)):
        order = torch.sort(keys.long(), stable=True).indices
        bounds = torch.bincount(keys.long(), minlength=rows).cumsum(0)
        found += [torch.cat([bounds.new_zeros(1), bounds]), values[order], order]
    return found


def arrays(graph: Graph) -> list[torch.Tensor]:
    return [
        array.long()
        for csr in (graph.by_dst, graph.by_src)
        for array in (csr.indptr, csr.indices, csr.edge_ids)
    ]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_edges", [0, 1, 200])
def test_from_edges_keeps_the_order_of_the_edges(num_edges: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    src = torch.randint(0, 17, (num_edges,), generator=generator, dtype=dtype)
    dst = torch.randint(0, 11, (num_edges,), generator=generator, dtype=dtype)
    graph = Graph.from_edges(src, dst, 17, 11)
    for got, want in zip(arrays(graph), by_both(src, dst, 17, 11), strict=True):
        assert torch.equal(got, want.long())
    back = graph.reversed()
    assert (back.num_src, back.num_dst, back.num_edges) == (11, 17, num_edges)
    for got, want in zip(arrays(back), by_both(dst, src, 11, 17), strict=True):
        assert torch.equal(got, want.long())


def test_from_edges_refuses_what_does_not_fit() -> None:
    ids = torch.arange(4)
    for src, dst, text in (
        (ids, ids[:3], "unlike src"),
        (ids.float(), ids, "wrong dtype"),
        (ids, ids[None], "wrong shape"),
        (ids, ids + 1, "out of range"),
        (ids + 1, ids, "out of range"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            Graph.from_edges(src, dst, 4, 4)


def test_reversal_is_shared_and_undone() -> None:
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 1], [2, 2, 0]]), 3, 3)
    back = graph.reversed()
    assert back.by_dst is graph.by_src and back.by_src is graph.by_dst
    assert graph.reversed() is back and back.reversed() is graph
    held = graph.nbytes()
    back.splits("dst", 64)
    assert graph.nbytes() > held
    graph.clear()
    assert torch.equal(back.by_dst.indices, graph.by_src.indices)
    del graph
    gc.collect()
    again = back.reversed()  # the first is gone; another with the same CSR stands in for it
    assert again.by_dst is back.by_src

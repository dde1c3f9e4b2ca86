"""Orders of rows: permutations, what they share with the plain graph, and what they cost."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest
import torch
from torch import Tensor

from gnn_backend import datasets
from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.graph.reorder import METHODS
from gnn_backend.graph.splits import make_splits
from tests.graph.support import NUM_DST, NUM_SRC, edge_index, rows_of, unpack

DIRECTIONS = ("dst", "src")


def bipartite() -> Graph:
    return Graph.from_edge_index(edge_index(), NUM_SRC, NUM_DST)


def square(num_nodes: int = 200, num_edges: int = 900) -> Graph:
    edges = datasets.rmat(num_nodes, num_edges)
    return Graph.from_edge_index(edges, num_nodes, num_nodes)


def is_permutation(order: Tensor, count: int) -> bool:
    return order.dtype == torch.int32 and sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize("method", METHODS)
def test_orders_are_permutations_and_always_the_same(method: str) -> None:
    state = torch.get_rng_state()
    for graph in (bipartite(), square()):
        order = graph.reorder(method).order
        assert order is not None and order.method == method
        assert is_permutation(order.dst, graph.num_dst) and is_permutation(order.src, graph.num_src)
        assert order.bipartite == (graph.num_src != graph.num_dst)
        graph.clear()
        again = graph.reorder(method).order
        assert again is not None and again is not order
        assert torch.equal(again.dst, order.dst) and torch.equal(again.src, order.src)
    assert torch.equal(state, torch.get_rng_state())


def test_what_the_orders_are() -> None:
    graph = square()
    for direction in DIRECTIONS:
        degree = graph.csr(direction).indptr.diff()
        by_degree = graph.reorder("degree").order
        assert by_degree is not None
        sizes = degree[by_degree.of(direction).long()].tolist()
        assert sizes == sorted(sizes, reverse=True)
    natural, rcm = graph.reorder("natural").order, graph.reorder("rcm").order
    assert natural is not None and natural.dst.tolist() == list(range(200))
    assert rcm is not None and rcm.dst is rcm.src

    def bandwidth(order: Tensor) -> int:
        place = torch.empty(grid.num_dst, dtype=torch.int64)
        place[order.long()] = torch.arange(grid.num_dst)
        rows = torch.repeat_interleave(torch.arange(grid.num_dst), grid.by_dst.indptr.diff())
        return int((place[rows] - place[grid.by_dst.indices.long()]).abs().max())

    data = datasets.GraphData("grid", datasets.grid(12, 12), 144)
    grid = Graph.from_edge_index(datasets.shuffled(data).edge_index, 144, 144)
    found = grid.reorder("rcm").order
    assert found is not None and bandwidth(found.dst) < 40 < bandwidth(torch.arange(144))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("counts", [(0, 0), (3, 0), (0, 2), (1, 1), (4, 4)])
def test_graphs_without_edges(method: str, counts: tuple[int, int]) -> None:
    graph = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), *counts).reorder(method)
    assert graph.order is not None
    assert is_permutation(graph.order.src, counts[0])
    assert is_permutation(graph.order.dst, counts[1])


def test_a_square_graph_of_two_sets_of_nodes() -> None:
    graph = square()
    apart = graph.reorder("community", bipartite=True)
    assert apart.order is not None and apart.order.bipartite
    assert is_permutation(apart.order.dst, 200) and is_permutation(apart.order.src, 200)
    assert not torch.equal(apart.order.dst, apart.order.src)
    assert graph.reorder("community") is not apart


def test_wrong_arguments() -> None:
    with pytest.raises(InvalidArgument, match="one of natural, degree, rcm, community"):
        square().reorder("random")
    with pytest.raises(InvalidArgument, match="6 sources and 5 destinations"):
        bipartite().reorder("rcm", bipartite=False)


def test_a_reordered_graph_shares_its_edges() -> None:
    graph = square()
    ordered = graph.reorder("community")
    assert graph.reorder("community") is ordered is ordered.reorder("community")
    assert ordered.by_dst is graph.by_dst and ordered.by_src is graph.by_src
    assert graph.order is None and graph.splits("dst", 8) is not ordered.splits("dst", 8)
    back = ordered.reversed()
    assert back.order is not None and ordered.order is not None
    assert back.order.dst is ordered.order.src and back.reversed() is ordered


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tasks_are_the_same_in_another_order(method: str, direction: str) -> None:
    graph = square()
    ordered = graph.reorder(method)
    plain, other = graph.splits(direction, 4), ordered.splits(direction, 4)  # type: ignore[arg-type]
    assert sorted(unpack(plain)) == sorted(unpack(other))
    assert torch.equal(plain.heavy_rows, other.heavy_rows)
    assert torch.equal(plain.heavy_ptr, other.heavy_ptr) and plain.num_slots == other.num_slots


def test_tasks_follow_the_order_but_for_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnn_backend.graph.splits.WINDOW", 3)
    indptr, order = torch.tensor([0, 1, 6, 8, 8]), torch.tensor([2, 1, 3, 0], dtype=torch.int32)
    splits = make_splits(indptr, 2, 6, 3, 1, order=order)
    # Rows 2, 1, 1, then 1, 3, 0: the last part of row 1 has one edge, row 3 none.
    tasks = [(row, count) for row, _, _, count in unpack(splits)]
    assert tasks == [(2, 2), (1, 2), (1, 2), (1, 1), (0, 1), (3, 0)]


@pytest.mark.parametrize("make", [bipartite, square])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rows_laid_out(make: object, direction: str) -> None:
    graph = make()  # type: ignore[operator]
    assert graph.ordered_rows(direction) is graph.csr(direction)
    ordered = graph.reorder("community")
    laid, plain = ordered.ordered_rows(direction), rows_of(graph.csr(direction))
    assert rows_of(laid) == [plain[row] for row in laid.rows.tolist()]
    assert laid is ordered.ordered_rows(direction)


def test_rows_laid_out_without_edge_ids() -> None:
    graph = Graph.from_csr(torch.tensor([0, 2, 2, 5]), torch.tensor([1, 0, 1, 1, 0]), 3)
    ordered = graph.reorder("degree")
    laid, plain = ordered.ordered_rows("dst"), rows_of(graph.by_dst)
    assert laid.rows is not None and laid.rows.tolist() == [2, 0, 1]
    assert rows_of(laid) == [plain[2], plain[0], plain[1]]


def test_pickled_with_its_order() -> None:
    ordered = bipartite().reorder("community")
    again = pickle.loads(pickle.dumps(ordered))
    assert again.order is not None and ordered.order is not None
    assert (again.order.method, again.order.bipartite) == ("community", True)
    assert torch.equal(again.order.dst, ordered.order.dst)
    assert torch.equal(again.splits("src", 2).tasks, ordered.splits("src", 2).tasks)
    assert rows_of(again.by_dst) == rows_of(ordered.by_dst)


def test_bytes_and_clear() -> None:
    graph = square()
    by_src = graph.by_src
    before = graph.nbytes()
    ordered = graph.reorder("degree")
    assert ordered.nbytes() == graph.nbytes() == before + 4 * 400
    splits = ordered.splits("dst", 8)
    assert ordered.nbytes() == graph.nbytes() == before + 4 * 400 + splits.nbytes()
    laid = ordered.ordered_rows("dst")
    assert ordered.nbytes() == before + 4 * 400 + splits.nbytes() + laid.nbytes()
    ordered.clear()
    assert ordered.nbytes() == before + 4 * 400 and ordered.by_src is by_src
    assert torch.equal(ordered.splits("dst", 8).tasks, splits.tasks)
    graph.clear()
    assert graph.nbytes() == before - by_src.nbytes()
    assert graph.reorder("degree") is not ordered


def test_freed_without_the_collector() -> None:
    graph = square()
    gc.disable()
    try:
        parts = [weakref.ref(graph), weakref.ref(graph.reorder("community"))]
        parts.append(weakref.ref(graph.reorder("community").splits("dst", 4)))
        del graph
        assert all(part() is None for part in parts)
    finally:
        gc.enable()

"""Nested communities: bounded sizes, planted ones found again, on both ways to the same end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnn_backend import datasets
from gnn_backend.graph import Graph
from gnn_backend.graph.communities import SIZES, Edges, SortedEdges, order_of
from gnn_backend.graph.counted_edges import CountedEdges

Make = Callable[[Tensor, int], Edges]


def by_sorts(edges: Tensor, count: int) -> SortedEdges:
    return SortedEdges(edges.flatten().int(), edges.flip(0).flatten().int())


def by_counts(edges: Tensor, count: int) -> CountedEdges:
    return CountedEdges.of(Graph.from_edge_index(edges, count, count), bipartite=False)


WAYS = pytest.mark.parametrize("make", [by_sorts, by_counts])


def blocks(count: int, size: int, density: float) -> tuple[Tensor, Tensor]:
    """Ends of a shuffled block model with a few edges between blocks, and the block of a node."""
    nodes = count * size
    edges = datasets.block_model(nodes, size, density)
    edges = torch.cat([edges, datasets.uniform(nodes, nodes, edges.shape[1] // 20)], 1)
    data = datasets.GraphData("blocks", edges, nodes, y=torch.arange(nodes) // size)
    mixed = datasets.shuffled(data)
    assert mixed.y is not None
    return mixed.edge_index, mixed.y


@WAYS
@pytest.mark.parametrize("size", [24, 100])
def test_planted_blocks_stand_together(make: Make, size: int) -> None:
    edges, block = blocks(1200 // size, size, 0.4)
    order = order_of(make(edges, 1200), 1200, edges.device)
    assert sorted(order.tolist()) == list(range(1200))
    found = block[order]
    assert int((found[1:] == found[:-1]).sum()) > 0.95 * 1200
    assert int((block[1:] == block[:-1]).sum()) < 0.15 * 1200


@WAYS
@pytest.mark.parametrize("bound", SIZES[:2])
def test_communities_are_bounded_and_hold_edges(make: Make, bound: int) -> None:
    edges = datasets.rmat(2000, 10_000)
    sizes = torch.ones(2000, dtype=torch.int64)
    labels = make(edges, 2000).propagate(sizes, bound, 0)
    count = labels.bincount(minlength=2000)
    assert bound / 2 < int(count.max()) <= bound
    inside = (labels[edges[0]] == labels[edges[1]]).double().mean()
    other = labels[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    assert inside > 2 * (other[edges[0]] == other[edges[1]]).double().mean()


@WAYS
def test_contracted_edges_keep_their_weights(make: Make) -> None:
    edges = datasets.rmat(60, 400)
    rows, columns = torch.cat([edges, edges.flip(0)], 1)
    labels = torch.arange(60) % 7
    small = make(edges, 60).contract(labels, 7)
    twice = small.contract(torch.arange(7) // 2, 4)
    for found, label, count in ((small, labels, 7), (twice, labels // 2, 4)):
        dense = torch.zeros(count, count, dtype=torch.int64)
        pairs = label[rows] * count + label[columns]
        dense.view(-1).scatter_add_(0, pairs, torch.ones_like(pairs))
        got = torch.zeros_like(dense)
        if isinstance(found, SortedEdges):
            assert found.weights is not None
            got[found.rows, found.columns] = found.weights
        else:
            assert isinstance(found, CountedEdges)
            where = torch.from_numpy(found.indptr).diff()
            at = torch.repeat_interleave(torch.arange(count), where)
            got[at, torch.from_numpy(found.columns).long()] = torch.from_numpy(found.weights)
        assert torch.equal(got, dense.fill_diagonal_(0))


@WAYS
def test_nodes_without_edges_and_loops(make: Make) -> None:
    loops = torch.tensor([[0, 2, 2], [0, 2, 2]])
    order = order_of(make(loops, 4), 4, loops.device)
    assert order.tolist() == [0, 1, 2, 3]
    none = torch.empty(2, 0, dtype=torch.int64)
    assert order_of(make(none, 0), 0, none.device).tolist() == []


def test_both_sides_of_a_bipartite_graph_stand_together() -> None:
    # Sources 3 i .. 3 i + 2 lead to destinations i, i + 20 and i + 40, of 20 groups.
    edges = torch.tensor([[3 * i + a, i + 20 * b] for i in range(20) for a in range(3)
                          for b in range(3)]).t()  # fmt: skip
    graph = Graph.from_edge_index(edges, 60, 61)
    order = graph.reorder("community").order
    assert order is not None
    groups = [i % 20 for i in order.dst.tolist() if i < 60]
    assert groups[::3] == groups[1::3] == groups[2::3]
    assert [i // 3 for i in order.src.tolist()][::3] == groups[::3]

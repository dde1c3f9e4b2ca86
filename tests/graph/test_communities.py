"""Nested communities: bounded sizes, planted ones found again, on both ways to the same end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnn_backend import datasets
from gnn_backend.graph.communities import SIZES, Edges, SortedEdges, order_of
from gnn_backend.graph.counted_edges import CountedEdges

Make = Callable[[Tensor, Tensor, int], Edges]
WAYS = pytest.mark.parametrize(
    "make",
    [lambda rows, columns, _: SortedEdges(rows, columns), CountedEdges.from_ends],
    ids=["sorted", "counted"],
)


def both_ways(edges: Tensor) -> tuple[Tensor, Tensor]:
    return edges.flatten().int(), edges.flip(0).flatten().int()


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
    order = order_of(make(*both_ways(edges), 1200), 1200, edges.device)
    assert sorted(order.tolist()) == list(range(1200))
    found = block[order]
    assert int((found[1:] == found[:-1]).sum()) > 0.95 * 1200
    assert int((block[1:] == block[:-1]).sum()) < 0.15 * 1200


@WAYS
@pytest.mark.parametrize("bound", SIZES[:2])
def test_communities_are_bounded_and_hold_edges(make: Make, bound: int) -> None:
    edges = datasets.rmat(2000, 10_000)
    sizes = torch.ones(2000, dtype=torch.int64)
    labels = make(*both_ways(edges), 2000).propagate(sizes, bound, 0)
    count = labels.bincount(minlength=2000)
    assert bound / 2 < int(count.max()) <= bound
    inside = (labels[edges[0]] == labels[edges[1]]).double().mean()
    other = labels[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    assert inside > 2 * (other[edges[0]] == other[edges[1]]).double().mean()


@WAYS
def test_contracted_edges_keep_their_weights(make: Make) -> None:
    edges = datasets.rmat(60, 400)
    rows, columns = both_ways(edges)
    labels = torch.arange(60) % 7
    small = make(rows, columns, 60).contract(labels, 7)
    twice = small.contract(torch.arange(7) // 2, 4)
    for found, label, count in ((small, labels, 7), (twice, labels // 2, 4)):
        dense = torch.zeros(count, count, dtype=torch.int64)
        pairs = label[rows.long()] * count + label[columns.long()]
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
    loops = torch.tensor([0, 2, 2], dtype=torch.int32)
    order = order_of(make(loops, loops, 4), 4, loops.device)
    assert order.tolist() == [0, 1, 2, 3]
    none = torch.empty(0, dtype=torch.int32)
    assert order_of(make(none, none, 0), 0, none.device).tolist() == []

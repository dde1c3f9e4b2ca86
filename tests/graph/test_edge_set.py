"""Edge sets: which pairs of nodes are joined, against a plain set of pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gnn_backend.graph import Graph
from gnn_backend.graph.edge_set import edge_set

N = 9


def random_edges(count: int, *, symmetric: bool, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(N, (2, count), generator=generator)
    ends = torch.cat([ends, ends[:, :3]], dim=1)  # duplicates
    return torch.cat([ends, ends.flip(0)], dim=1) if symmetric else ends


@pytest.mark.parametrize("made", ["edge_index", "edges", "csr"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("count", [0, 25, 120])
def test_absent_pairs(made: str, symmetric: bool, count: int) -> None:
    ends = random_edges(count, symmetric=symmetric)
    graph = Graph.from_edge_index(ends, N, N)
    if made == "edges":
        graph = Graph.from_edges(*ends, N, N)
    elif made == "csr":
        graph = Graph.from_csr(graph.by_dst.indptr, graph.by_dst.indices, N)
    found = edge_set(graph)
    assert edge_set(graph) is found
    joined = {(i, j) for i, j in ends.t().tolist() if i != j}
    either = joined | {(j, i) for i, j in joined}
    assert found.symmetric == (symmetric or joined == either == set())
    assert found.edges == int((ends[0] != ends[1]).sum())
    assert found.pairs == len(either)
    different = [(i, j) for i, j in itertools.product(range(N), repeat=2) if i != j]
    order = np.random.default_rng(1).permutation(len(different))
    for known, options in ((joined, {"either": False}), (either, {"either": True})):
        want = [different[k] for k in order if different[k] not in known]
        for limit in (N * N, 5):
            pairs = found.absent(order, limit, **options)
            assert [tuple(pair) for pair in pairs.t().tolist()] == want[:limit]
    turned = found.absent(order, N * N, either=False, swapped=True)
    want = [different[k] for k in order if different[k][::-1] not in joined]
    assert [tuple(pair) for pair in turned.t().tolist()] == want


def test_an_edge_that_is_there_more_often_in_one_direction() -> None:
    once = Graph.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 0, 2, 2]]), 3, 3)
    twice = Graph.from_edge_index(torch.tensor([[0, 1, 1, 2], [1, 0, 0, 2]]), 3, 3)
    assert edge_set(once).symmetric and not edge_set(twice).symmetric


def test_what_a_graph_holds_for_it() -> None:
    ends = random_edges(25, symmetric=False)
    for graph, shared in ((Graph.from_edge_index(ends, N, N), True),
                          (Graph.from_edges(*ends, N, N), False)):  # fmt: skip
        assert graph.by_src is not None
        before = graph.nbytes()
        edge_set(graph)
        assert (graph.nbytes() == before) == shared

"""Pairs for SuperGATConv's loss: the layer's own, bit for bit, and the generators after them."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant
from gnn_backend.adapters.pyg.pair_sampling import absent_pairs, takes_all_edges
from gnn_backend.verify import seed_all

pytest.importorskip("torch_geometric")
from torch_geometric.nn import SuperGATConv
from torch_geometric.nn.conv import supergat_conv
from torch_geometric.utils import add_self_loops, remove_self_loops, to_undirected


def some_edges(nodes: int, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(nodes, (2, count), generator=generator)


def states() -> tuple[Any, ...]:
    numpy_state: Any = np.random.get_state()
    return (random.getstate(), torch.get_rng_state().tolist(), numpy_state[1].tolist(),
            numpy_state[2:])  # fmt: skip


def same_pairs(conv: SuperGATConv, edges: Tensor, nodes: int, seed: int = 0) -> Tensor:
    """The pairs of both, which must be equal, from the same state to the same state."""
    reverse = conv.flow == "target_to_source"
    graph = graph_of(edges, Variant(nodes, nodes, bool(conv.add_self_loops), reverse))
    theirs = edges
    if conv.add_self_loops:
        theirs = add_self_loops(remove_self_loops(edges)[0], num_nodes=nodes)[0]
    seed_all(seed)
    want = conv.negative_sampling(theirs, nodes)
    after = states()
    seed_all(seed)
    got = absent_pairs(conv, edges, graph, None)
    assert got is not None
    assert torch.equal(got.long(), want)
    assert states() == after
    return want


#: Nodes, edges, and whether both directions are there; to the right ever fewer pairs are left.
GRAPHS = [(400, 900, False), (400, 900, True), (60, 1500, True), (13, 60, False), (9, 60, False),
          (9, 30, True), (7, 200, True), (2, 3, False)]  # fmt: skip


@pytest.mark.parametrize(("nodes", "count", "both"), GRAPHS)
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_pairs_and_generators_are_stocks(nodes: int, count: int, both: bool, flow: str) -> None:
    for seed in range(6):
        edges = some_edges(nodes, count, seed)  # with duplicates and self-loops
        edges = torch.cat([edges, edges.flip(0)], dim=1) if both else edges
        for loops in (True, False):
            conv = SuperGATConv(2, 2, flow=flow, add_self_loops=loops, is_undirected=seed % 3 == 0,
                                neg_sample_ratio=(0.5, 3.0)[seed % 2])  # fmt: skip
            same_pairs(conv, edges, nodes, seed)


def test_a_single_node() -> None:
    assert same_pairs(SuperGATConv(2, 2, neg_sample_ratio=3.0), some_edges(1, 2, 0), 1).numel() == 0


def test_several_tries() -> None:
    """So few pairs are left that a try, or all three, may draw none of them."""
    found = []
    for seed in range(60):
        edges = to_undirected(some_edges(14, 200, seed), num_nodes=14)
        ratio = (1.5 + seed % 3) / edges.shape[1]
        conv = SuperGATConv(2, 2, add_self_loops=False, neg_sample_ratio=ratio)
        found.append(same_pairs(conv, edges, 14, seed).shape[1] - (1 + seed % 3))
    assert any(found) and not all(found), "the graphs do not make all tries fail, or always do"


def test_an_edited_edge_index_is_looked_up_anew() -> None:
    edges = some_edges(30, 80, 0)
    conv = SuperGATConv(2, 2)
    same_pairs(conv, edges, 30)
    edges[0] = (edges[0] + 1) % 30
    same_pairs(conv, edges, 30)


def test_what_is_left_to_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = some_edges(30, 80, 0)
    graph = graph_of(edges, Variant(30, 30, True))

    def left(conv: Any, given: Any = edges, batch: Any = None) -> bool:
        return absent_pairs(conv, given, graph, batch) is None

    conv = SuperGATConv(2, 2)
    assert takes_all_edges(conv) and not takes_all_edges(SuperGATConv(2, 2, edge_sample_ratio=0.9))
    assert not left(conv)
    assert left(conv, edges.int()) and left(conv, batch=torch.zeros(30, dtype=torch.long))
    assert left(SuperGATConv(2, 2, neg_sample_ratio=0.001))  # none: an error of stock's
    state = random.getstate()
    with monkeypatch.context() as patched:
        patched.setattr(supergat_conv, "negative_sampling", lambda edges, *_, **__: edges)
        assert left(conv)
    with monkeypatch.context() as patched:
        utilities = sys.modules["torch_geometric.utils._negative_sampling"]
        patched.setattr(utilities, "sample", lambda population, k, device=None: torch.arange(k))
        assert left(conv)
    with monkeypatch.context() as patched:
        patched.setattr(random, "sample", lambda population, k: list(population)[:k])
        assert left(conv)
    assert random.getstate() == state

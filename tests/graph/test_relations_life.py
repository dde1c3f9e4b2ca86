"""How long relations live, what makes them stale, and what they hold."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations, relations_of
from gnn_backend.ir.domains import Domain
from tests.graph.support import EDGES, NUM_DST, NUM_SRC, edge_index


def make() -> Graph:
    return Graph.from_edge_index(edge_index(), NUM_SRC, NUM_DST)


@pytest.fixture
def graph() -> Graph:
    return make()


def types() -> torch.Tensor:
    return torch.arange(len(EDGES)) % 3


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def index_of(relations: Relations) -> torch.Tensor | None:
    return relations.index(Domain.EDGE, Domain.SRC_PAIR)


def test_found_again_through_the_tensors(graph: Graph) -> None:
    kinds = types()
    index = index_of(relations_of(graph, kinds, 3))
    assert index_of(relations_of(graph, kinds, 3)) is index
    assert index_of(relations_of(graph, kinds, 4)) is not index
    assert index_of(relations_of(graph, kinds.clone(), 3)) is not index


def test_an_edit_in_place_makes_them_stale(graph: Graph) -> None:
    kinds = types()
    relations_of(graph, kinds)
    kinds[0] = 2
    found = relations_of(graph, kinds)
    assert found.edge_types is not None and found.edge_types.tolist() == kinds.tolist()
    assert len(graph.plans["relations"]) == 1


def test_types_are_copied(graph: Graph) -> None:
    kinds = types().int()
    relations = Relations(graph, kinds)
    kinds.fill_(0)
    assert relations.edge_types is not None and relations.edge_types.tolist() == types().tolist()


@pytest.mark.usefixtures("no_collector")
def test_freed_with_the_tensor_and_with_the_graph() -> None:
    graph, kinds, others = make(), types(), types()
    first, second = (
        weakref.ref(relations_of(graph, t).degree(Domain.SRC)) for t in (kinds, others)
    )
    del kinds
    assert first() is None and second() is not None
    del graph
    assert second() is None


def test_inference_tensors_are_taken_anew(graph: Graph) -> None:
    with torch.inference_mode():
        kinds = types()
        relations_of(graph, kinds)
        kinds[0] = 2
        found = relations_of(graph, kinds)
    assert found.edge_types is not None and found.edge_types[0] == 2
    assert not found.edge_types.is_inference()


def test_what_inference_builds_can_be_trained_on(graph: Graph) -> None:
    relations = relations_of(graph, types())
    with torch.inference_mode():
        degree = relations.degree(Domain.DST_PAIR)
    x = torch.ones_like(degree, requires_grad=True)
    (x * degree).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, degree)


def test_bytes_are_counted_with_the_graph(graph: Graph) -> None:
    kinds, before = types(), graph.nbytes()
    relations = relations_of(graph, kinds)
    assert relations.nbytes() == 4 * len(EDGES)
    index_of(relations)
    pairs, held = relations.num(Domain.SRC_PAIR), relations.nbytes()
    # Of pairs: nodes, bounds and edges of each, bounds of the types; and the index itself.
    assert held == 4 * (len(EDGES) + pairs + (pairs + 1) + len(EDGES) + (3 + 1) + len(EDGES))
    by_src = graph.by_src.nbytes()
    assert graph.nbytes() == before + by_src + held
    graph.clear()
    assert graph.nbytes() == before


def test_threads_get_one_index(graph: Graph) -> None:
    relations, found = relations_of(graph, types()), []
    start = threading.Barrier(4)

    def ask() -> None:
        start.wait()
        found.append(index_of(relations))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(index) for index in found}) == 1

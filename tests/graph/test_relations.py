"""Relations: indices, segments, incidences and degrees between all domains; bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from tests.graph.relational_support import DOMAINS, check, typed_graph, without_edges
from tests.graph.support import NUM_DST, NUM_SRC, edge_index, unpack


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_domain_in_every_other(seed: int, ascending: bool) -> None:
    check(typed_graph(seed, ascending=ascending))


def test_no_edges() -> None:
    check(without_edges())


def test_types_that_ascend_are_not_sorted() -> None:
    relations = typed_graph(2, ascending=True).relations()
    for fine, types in (
        (Domain.EDGE, Domain.EDGE_TYPE), (Domain.SRC, Domain.NODE_TYPE),
        (Domain.DST, Domain.NODE_TYPE), (Domain.SRC_PAIR, Domain.EDGE_TYPE),
    ):  # fmt: skip
        assert relations.by_type(fine, types).order is None
    assert typed_graph(2).relations().by_type(Domain.EDGE, Domain.EDGE_TYPE).order is not None


def test_without_types_there_is_one_of_each() -> None:
    graph = Graph.from_edge_index(edge_index(), NUM_SRC, NUM_DST)
    relations = Relations(graph)
    assert relations.edge_types is None and relations.src_types is None
    assert (relations.num_edge_types, relations.num_node_types) == (1, 1)
    assert relations.num(Domain.SRC_PAIR) == int((graph.by_src.indptr.diff() > 0).sum())
    assert relations.by_type(Domain.EDGE, Domain.EDGE_TYPE).lengths == (graph.num_edges,)
    index = relations.index(Domain.EDGE, Domain.EDGE_TYPE)
    assert index is not None and not index.any()


def test_more_types_than_occur() -> None:
    graph = Graph.from_edge_index(edge_index(), NUM_SRC, NUM_DST)
    relations = Relations(graph, torch.tensor([1, 4, 1, 1, 4, 4, 1, 4]), 7)
    assert relations.by_type(Domain.EDGE, Domain.EDGE_TYPE).lengths == (0, 4, 0, 0, 4, 0, 0)
    assert sum(relations.by_type(Domain.DST_PAIR, Domain.EDGE_TYPE).lengths) == relations.num(
        Domain.DST_PAIR
    )


def test_degrees_are_numbers_of_edges() -> None:
    case = typed_graph(3)
    relations = case.relations()
    for domain in DOMAINS:
        if domain is Domain.NODE_TYPE:
            continue
        index = case.index(Domain.EDGE, domain)
        expected = [float(index.count(row)) for row in range(case.num(domain))]
        degree = relations.degree(domain)
        assert degree.dtype == torch.float32 and degree.tolist() == expected
    with pytest.raises(InvalidArgument, match="node type"):
        relations.degree(Domain.NODE_TYPE)


@pytest.mark.parametrize("rows", [Domain.DST, Domain.SRC_PAIR, Domain.EDGE_TYPE])
def test_splits_cover_every_place_once(rows: Domain) -> None:
    incidence = typed_graph(4).relations().incidence(rows, Domain.EDGE)
    splits = incidence.splits(3)
    assert splits is incidence.splits(3)
    ptr = incidence.indptr.tolist()
    places = []
    for row, _, begin, count in unpack(splits):
        assert count <= 3 and ptr[row] <= begin and begin + count <= ptr[row + 1]
        places += range(begin, begin + count)
    assert sorted(places) == list(range(incidence.num_elements))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"edge_types": torch.zeros(7, dtype=torch.int64)}, r"edge_types: wrong shape"),
    ({"edge_types": torch.zeros(8)}, "edge_types: wrong dtype"),
    ({"edge_types": torch.arange(8), "num_edge_types": 7}, "edge_types: type out of range"),
    ({"edge_types": torch.arange(8) - 1}, "edge_types: type out of range"),
    ({"num_edge_types": 0}, "num_edge_types: no type"),
    ({"src_types": torch.zeros(NUM_DST, dtype=torch.int64)}, "src_types: wrong shape"),
    ({"dst_types": torch.arange(NUM_DST), "num_node_types": 2}, "dst_types: type out of range"),
    ({"edge_types": [0] * 8}, "edge_types: not a tensor"),
    ({"edge_types": torch.zeros(8, dtype=torch.int64, device="meta")}, "another device"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_types(arguments: dict[str, Any], message: str) -> None:
    graph = Graph.from_edge_index(edge_index(), NUM_SRC, NUM_DST)
    with pytest.raises(InvalidArgument, match=message):
        Relations(graph, **arguments)


def test_domains_that_do_not_fit() -> None:
    relations = typed_graph(0).relations()
    with pytest.raises(InvalidArgument, match="coarse"):
        relations.index(Domain.SRC, Domain.DST)
    with pytest.raises(InvalidArgument, match="not a type"):
        relations.by_type(Domain.EDGE, Domain.SRC)
    with pytest.raises(InvalidArgument, match="rows"):
        relations.incidence(Domain.EDGE, Domain.SRC)
    with pytest.raises(InvalidArgument, match="chunk"):
        relations.incidence(Domain.SRC_PAIR, Domain.EDGE).splits(0)

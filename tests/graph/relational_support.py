"""Typed graphs at random, and the indices between their domains as written down edge by edge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain, reads

DOMAINS = tuple(Domain)
TYPES = (Domain.PARAM, Domain.NODE_TYPE, Domain.EDGE_TYPE)
READABLE = [(fine, coarse) for fine in DOMAINS for coarse in DOMAINS if reads(fine, coarse)]


@dataclass
class TypedGraph:
    """Ends and types of edges, types of nodes, and how many of each there are."""

    src: Tensor
    dst: Tensor
    edge_types: Tensor
    src_types: Tensor
    dst_types: Tensor
    counts: tuple[int, int, int, int]  # sources, destinations, edge types, node types

    def relations(self, device: str = "cpu") -> Relations:
        num_src, num_dst, edge_types, node_types = self.counts
        edges = torch.stack([self.src, self.dst]).to(device)
        types = [t.to(device) for t in (self.edge_types, self.src_types, self.dst_types)]
        graph = Graph.from_edge_index(edges, num_src, num_dst)
        return Relations(graph, types[0], edge_types, types[1], types[2], node_types)

    @cached_property
    def pairs(self) -> dict[Domain, list[tuple[int, int]]]:
        """(edge type, node), as they are numbered."""
        ends = {Domain.SRC_PAIR: self.src, Domain.DST_PAIR: self.dst}
        types = self.edge_types.tolist()
        return {d: sorted(set(zip(types, end.tolist(), strict=True))) for d, end in ends.items()}

    def num(self, domain: Domain) -> int:
        num_src, num_dst, edge_types, node_types = self.counts
        if domain in self.pairs:
            return len(self.pairs[domain])
        return {
            Domain.PARAM: 1, Domain.NODE_TYPE: node_types, Domain.EDGE_TYPE: edge_types,
            Domain.SRC: num_src, Domain.DST: num_dst, Domain.EDGE: len(self.src),
        }[domain]  # fmt: skip

    def index(self, fine: Domain, coarse: Domain) -> list[int]:
        """Row of ``coarse`` of each row of ``fine``."""
        if fine is coarse:
            return list(range(self.num(fine)))
        if coarse is Domain.PARAM:
            return [0] * self.num(fine)
        if fine in self.pairs:
            nodes = [node for _, node in self.pairs[fine]]
            if coarse is Domain.EDGE_TYPE:
                return [kind for kind, _ in self.pairs[fine]]
            own = self.src_types if fine is Domain.SRC_PAIR else self.dst_types
            return own[nodes].tolist() if coarse is Domain.NODE_TYPE else nodes
        if fine in (Domain.SRC, Domain.DST):
            return (self.src_types if fine is Domain.SRC else self.dst_types).tolist()
        ends = {Domain.SRC: self.src, Domain.SRC_PAIR: self.src}
        end, types = ends.get(coarse, self.dst).tolist(), self.edge_types.tolist()
        if coarse in self.pairs:
            return [self.pairs[coarse].index(pair) for pair in zip(types, end, strict=True)]
        return types if coarse is Domain.EDGE_TYPE else end


def typed_graph(seed: int, *, ascending: bool = False, most_edges: int = 40) -> TypedGraph:
    """Random sizes and ends; with ``ascending`` the edges and nodes are sorted by type."""
    g = torch.Generator().manual_seed(seed)

    def draw(high: int, size: int) -> Tensor:
        return torch.randint(high, (size,), generator=g)

    num_src, num_dst, edge_types, node_types = (int(draw(h, 1)) + 1 for h in (9, 7, 6, 4))
    edges = int(draw(most_edges, 1)) + 1
    types = [draw(edge_types, edges), draw(node_types, num_src), draw(node_types, num_dst)]
    if ascending:
        types = [t.sort().values for t in types]
    counts = num_src, num_dst, edge_types, node_types
    return TypedGraph(draw(num_src, edges), draw(num_dst, edges), *types, counts)


def without_edges() -> TypedGraph:
    """Nodes and types alone."""
    none = torch.empty(0, dtype=torch.int64)
    return TypedGraph(none, none, none, torch.tensor([0, 1, 0]), torch.tensor([1, 1]), (3, 2, 3, 2))


def check(case: TypedGraph, device: str = "cpu") -> None:
    """Everything that :class:`Relations` answers, against the lists."""
    relations = case.relations(device)
    for domain in DOMAINS:
        assert relations.num(domain) == case.num(domain)
    for fine, coarse in READABLE:
        expected = case.index(fine, coarse)
        assert rows(relations.index(fine, coarse), case.num(fine)) == expected, (fine, coarse)
        check_incidence(case, relations, coarse, fine)
        if coarse in TYPES:
            segments = relations.by_type(fine, coarse)
            assert list(segments.lengths) == segments.ptr.diff().tolist()
            order = rows(segments.order, case.num(fine))
            assert [expected[row] for row in order] == sorted(expected)
            assert list(segments.lengths) == [expected.count(t) for t in range(case.num(coarse))]


def check_incidence(case: TypedGraph, relations: Relations, coarse: Domain, fine: Domain) -> None:
    incidence = relations.incidence(coarse, fine)
    expected = case.index(fine, coarse)
    assert (incidence.num_rows, incidence.num_elements) == (case.num(coarse), case.num(fine))
    order, ptr = rows(incidence.order, case.num(fine)), incidence.indptr.tolist()
    for row in range(case.num(coarse)):
        elements = order[ptr[row] : ptr[row + 1]]
        assert sorted(elements) == [e for e, r in enumerate(expected) if r == row], (coarse, fine)
    for domain in DOMAINS:
        if reads(fine, domain):
            found = rows(incidence.index(domain), case.num(fine))
            assert found == [case.index(fine, domain)[e] for e in order], (coarse, fine, domain)


def rows(index: Tensor | None, count: int) -> list[int]:
    """An index as a list; None is the identity."""
    assert index is None or index.dtype == torch.int32
    return list(range(count)) if index is None else index.tolist()

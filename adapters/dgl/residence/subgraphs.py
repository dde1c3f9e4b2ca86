"""Induced subgraphs, on the device."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence.arrays import tensor_of
from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.adapters.dgl.residence.mirror import Relation
from gnn_backend.adapters.dgl.residence.native import native
from gnn_backend.adapters.dgl.residence.queries import check_ids, edge_ids, neighbours


@dataclasses.dataclass
class Subgraph:
    """What DGL reads of a ``HeteroSubgraphIndex``."""

    graph: ResidentIndex
    induced_nodes: list[Tensor]
    induced_edges: list[Tensor]


def first_seen(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct ids in the order of their first appearance, and each id's position among them."""
    distinct, inverse = torch.unique(ids, return_inverse=True)
    first = torch.full((distinct.numel(),), ids.numel(), device=ids.device)
    places = torch.arange(ids.numel(), device=ids.device)
    first.scatter_reduce_(0, inverse, places, "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=ids.device)
    return distinct[order], rank[inverse]


@native("HeteroVertexSubgraph")
def node_subgraph(index: ResidentIndex, nodes: Any) -> Subgraph:
    chosen, new_ids = [], []
    for ntype, given in enumerate(nodes):
        ids = tensor_of(given, index.device, index.idtype)
        check_ids(ids, index.counts[ntype], "node")
        table = torch.full((index.counts[ntype],), -1, dtype=index.idtype, device=index.device)
        table[ids.long()] = torch.arange(ids.numel(), dtype=index.idtype, device=index.device)
        chosen.append(ids)
        new_ids.append(table)
    counts = [ids.numel() for ids in chosen]
    relations, edges = [], []
    for relation, (src_type, dst_type) in zip(index.relations, index.ends, strict=True):
        csr = relation.graph.by_src
        owner, positions = neighbours(csr, chosen[src_type])
        dst = new_ids[dst_type][csr.indices[positions].long()]
        kept = (dst >= 0).nonzero()[:, 0]
        relations.append(
            Relation.from_ends(
                owner[kept].to(index.idtype), dst[kept], counts[src_type], counts[dst_type],
                relation.same_type,
            )
        )  # fmt: skip
        edges.append(edge_ids(csr, positions[kept]).to(index.idtype))
    return Subgraph(index.with_relations(relations, counts), chosen, edges)


@native("HeteroEdgeSubgraph")
def edge_subgraph(index: ResidentIndex, edges: Any, preserve_nodes: bool) -> Any:
    if "coo" not in index.allowed:
        return NotImplemented
    chosen, ends = [], []
    for relation, given in zip(index.relations, edges, strict=True):
        ids = tensor_of(given, index.device, index.idtype)
        check_ids(ids, relation.num_edges, "edge")
        src, dst = relation.ends
        chosen.append(ids)
        ends.append((src[ids.long()], dst[ids.long()]))
    if preserve_nodes:
        relations = [
            Relation.from_ends(*end, relation.num_src, relation.num_dst, relation.same_type)
            for end, relation in zip(ends, index.relations, strict=True)
        ]
        nodes = [
            torch.arange(count, dtype=index.idtype, device=index.device) for count in index.counts
        ]
        return Subgraph(index.with_relations(relations), nodes, chosen)
    relations, nodes = relabelled(index, ends)
    return Subgraph(
        index.with_relations(relations, [n.numel() for n in nodes]), nodes, chosen
    )  # fmt: skip


def relabelled(
    index: ResidentIndex, ends: list[tuple[Tensor, Tensor]], first: list[Tensor] | None = None
) -> tuple[list[Relation], list[Tensor]]:
    """Relations over the nodes that have an edge, and those nodes, in the order of appearance.

    Parameters
    ----------
    index : ResidentIndex
        For its types.
    ends : list of (Tensor, Tensor)
        Both ends of the edges of each relation.
    first : list of Tensor, optional
        Nodes of each type that come before those found at edges.
    """
    found: list[list[Tensor]] = [[] for _ in index.counts]
    for (src_type, dst_type), (src, dst) in zip(index.ends, ends, strict=True):
        found[src_type].append(src)
        found[dst_type].append(dst)
    nodes, places = [], []
    for ntype, parts in enumerate(found):
        given = [] if first is None else [first[ntype]]
        empty = torch.empty(0, dtype=index.idtype, device=index.device)
        distinct, place = first_seen(torch.cat([*given, *parts, empty]))
        nodes.append(distinct)
        skip = sum(part.numel() for part in given)
        places.append(list(place[skip:].split([part.numel() for part in parts])))
    relations = []
    for relation, (src_type, dst_type) in zip(index.relations, index.ends, strict=True):
        src, dst = places[src_type].pop(0), places[dst_type].pop(0)
        relations.append(
            Relation.from_ends(
                src.to(index.idtype), dst.to(index.idtype),
                nodes[src_type].numel(), nodes[dst_type].numel(), relation.same_type,
            )
        )  # fmt: skip
    return relations, nodes


@native("InSubgraph")
def in_subgraph(index: ResidentIndex, nodes: Any, relabel: bool) -> Any:
    return _at_nodes(index, nodes, relabel, "dst")


@native("OutSubgraph")
def out_subgraph(index: ResidentIndex, nodes: Any, relabel: bool) -> Any:
    return _at_nodes(index, nodes, relabel, "src")


def _at_nodes(index: ResidentIndex, nodes: Any, relabel: bool, direction: Any) -> Subgraph:
    chosen = [tensor_of(given, index.device, index.idtype) for given in nodes]
    if len(chosen) != index.num_types:
        raise DGLError(f"Expect nodes of {index.num_types} types, but got {len(chosen)}.")
    for ids, count in zip(chosen, index.counts, strict=True):
        check_ids(ids, count, "node")
    ends, edges = [], []
    for relation, (src_type, dst_type) in zip(index.relations, index.ends, strict=True):
        csr = relation.graph.csr(direction)
        at = chosen[dst_type if direction == "dst" else src_type]
        owner, positions = neighbours(csr, at)
        others = csr.indices[positions].to(index.idtype)
        ends.append((others, at[owner]) if direction == "dst" else (at[owner], others))
        edges.append(edge_ids(csr, positions).to(index.idtype))
    return sampled(index, ends, edges, relabel)


def sampled(
    index: ResidentIndex,
    ends: list[tuple[Tensor, Tensor]],
    edges: list[Tensor],
    relabel: bool = False,
) -> Subgraph:
    """The subgraph of some edges, over all nodes or over those that have one."""
    if relabel:
        relations, nodes = relabelled(index, ends)
        counts = [ids.numel() for ids in nodes]
        return Subgraph(index.with_relations(relations, counts), nodes, edges)
    relations = [
        Relation.from_ends(*end, relation.num_src, relation.num_dst, relation.same_type)
        for end, relation in zip(ends, index.relations, strict=True)
    ]
    return Subgraph(index.with_relations(relations), [], edges)

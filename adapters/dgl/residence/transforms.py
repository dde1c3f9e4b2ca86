"""Simple graphs, compaction and blocks, on the device."""

from __future__ import annotations

from typing import Any

import torch
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence import index as indices
from gnn_backend.adapters.dgl.residence.arrays import DeviceArray, tensor_of
from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.adapters.dgl.residence.mirror import Relation
from gnn_backend.adapters.dgl.residence.native import native
from gnn_backend.adapters.dgl.residence.queries import check_ids
from gnn_backend.adapters.dgl.residence.subgraphs import first_seen


def simple(relation: Relation) -> tuple[Relation, Tensor, Tensor]:
    """A relation without parallel edges, sorted by source and destination.

    Returns
    -------
    Relation
    Tensor [edges of the simple relation]
        How many edges each stands for.
    Tensor [E]
        The edge of the simple relation that stands for each edge.
    """
    keys, ids = relation.keys
    distinct, inverse, counts = torch.unique_consecutive(
        keys, return_inverse=True, return_counts=True
    )
    place = torch.empty_like(inverse)
    place[ids] = inverse
    width = max(relation.num_dst, 1)
    src = torch.div(distinct, width, rounding_mode="floor").to(relation.dtype)
    dst = (distinct % width).to(relation.dtype)
    found = Relation.from_ends(src, dst, relation.num_src, relation.num_dst, relation.same_type)
    return found, counts.to(relation.dtype), place.to(relation.dtype)


@native("ToSimpleHetero")
def to_simple(index: ResidentIndex) -> tuple[ResidentIndex, list[Any], list[Any]]:
    relations, counts, places = zip(*map(simple, index.relations), strict=True)
    return (
        index.with_relations(relations),
        [DeviceArray(count) for count in counts],
        [DeviceArray(place) for place in places],
    )


@native("CompactGraphs")
def compact(graphs: Any, always_preserve: Any) -> Any:
    graphs = list(graphs)
    if not all(type(graph) is ResidentIndex for graph in graphs):
        return NotImplemented
    device, idtype = graphs[0].device, graphs[0].idtype
    found = [[tensor_of(given, device, idtype)] for given in always_preserve]
    for graph in graphs:
        for relation, (src_type, dst_type) in zip(graph.relations, graph.ends, strict=True):
            found[src_type].append(relation.ends[0])
            found[dst_type].append(relation.ends[1])
    nodes, places = [], []
    for parts in found:
        distinct, place = first_seen(torch.cat(parts))
        nodes.append(distinct)
        places.append(list(place.to(idtype).split([part.numel() for part in parts]))[1:])
    counts = [ids.numel() for ids in nodes]
    made = []
    for graph in graphs:
        relations = []
        for relation, (src_type, dst_type) in zip(graph.relations, graph.ends, strict=True):
            src, dst = places[src_type].pop(0), places[dst_type].pop(0)
            relations.append(
                Relation.from_ends(src, dst, counts[src_type], counts[dst_type], relation.same_type)
            )
        made.append(graph.with_relations(relations, counts))
    return made, [DeviceArray(ids) for ids in nodes]


@native("ToBlock")
def to_block(
    index: ResidentIndex, dst_nodes: Any, include_dst_in_src: bool, src_nodes: Any
) -> tuple[ResidentIndex, list[Any], list[Any]]:
    dst_ids = [tensor_of(given, index.device, index.idtype) for given in dst_nodes]
    given_src = [tensor_of(given, index.device, index.idtype) for given in src_nodes]
    for ids, count in zip(dst_ids, index.counts, strict=True):
        check_ids(ids, count, "destination node")
    # Relations into a type without destinations lose their edges, as in DGL.
    empty = torch.empty(0, dtype=index.idtype, device=index.device)
    ends = [
        relation.ends if dst_ids[dst_type].numel() else (empty, empty)
        for relation, (_, dst_type) in zip(index.relations, index.ends, strict=True)
    ]
    src_ids, places = _sources(index, ends, dst_ids, include_dst_in_src, given_src)
    relations, edges = [], []
    for etype, (src_type, dst_type) in enumerate(index.ends):
        dst, known = _places(dst_ids[dst_type], ends[etype][1])
        if not known:
            raise DGLError("Expect every edge to end at one of dst_nodes, but some do not; pass "
                           "the destinations of all edges.")  # fmt: skip
        relations.append(
            Relation.from_ends(
                places[etype].to(index.idtype), dst.to(index.idtype),
                src_ids[src_type].numel(), dst_ids[dst_type].numel(), False,
            )
        )  # fmt: skip
        edges.append(torch.arange(dst.numel(), dtype=index.idtype, device=index.device))
    types = tuple((src, dst + index.num_types) for src, dst in index.ends)
    block = ResidentIndex.make(
        indices.metagraph(2 * index.num_types, types),
        [ids.numel() for ids in (*src_ids, *dst_ids)],
        relations, index.device, idtype=index.idtype, ends=types,
    )  # fmt: skip
    return block, [DeviceArray(ids) for ids in src_ids], [DeviceArray(ids) for ids in edges]


def _sources(
    index: ResidentIndex,
    ends: list[tuple[Tensor, Tensor]],
    dst_ids: list[Tensor],
    include_dst: bool,
    given: list[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Source nodes of each type, and each relation's sources as positions among them."""
    if given:
        places = []
        for (src, _), (src_type, _) in zip(ends, index.ends, strict=True):
            place, known = _places(given[src_type], src)
            if not known:
                raise DGLError("Expect every edge to start at one of src_nodes, but some do not; "
                               "pass the sources of all edges.")  # fmt: skip
            places.append(place)
        return given, places
    parts: list[list[Tensor]] = [[ids] if include_dst else [] for ids in dst_ids]
    for (src, _), (src_type, _) in zip(ends, index.ends, strict=True):
        parts[src_type].append(src)
    ids, found = [], []
    for ntype, arrays in enumerate(parts):
        empty = torch.empty(0, dtype=index.idtype, device=index.device)
        distinct, place = first_seen(torch.cat([*arrays, empty]))
        ids.append(distinct)
        sizes = [array.numel() for array in arrays]
        found.append(list(place.split(sizes))[1 if include_dst else 0 :])
        if include_dst and distinct.numel() < dst_ids[ntype].numel():
            raise DGLError("Expect dst_nodes to be distinct, but some occur twice.")
    return ids, [found[src_type].pop(0) for src_type, _ in index.ends]


def _places(table: Tensor, ids: Tensor) -> tuple[Tensor, bool]:
    """Position in ``table`` of each id, and whether all are there; ids in it are distinct."""
    if ids.numel() == 0:
        return ids.long(), True
    if table.numel() == 0:
        return ids.long(), False
    ordered, order = torch.sort(table)
    at = torch.searchsorted(ordered, ids).clamp(max=table.numel() - 1)
    return order[at], bool((ordered[at] == ids).all())

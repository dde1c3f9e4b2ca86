"""Making, slicing and combining resident indices."""

from __future__ import annotations

from typing import Any

import torch
from dgl.base import DGLError

from gnn_backend.adapters.dgl.residence import index as indices
from gnn_backend.adapters.dgl.residence.arrays import DeviceArray, tensor_of
from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from gnn_backend.adapters.dgl.residence.mirror import (
    FORMATS,
    Relation,
    compressed_ends,
    format_names,
)
from gnn_backend.adapters.dgl.residence.native import native
from gnn_backend.adapters.dgl.residence.streams import upload
from gnn_backend.adapters.dgl.residence.support import device_of


def _restricted(index: ResidentIndex, formats: Any, created: str = "coo") -> ResidentIndex:
    allowed = format_names([formats] if isinstance(formats, str) else formats)
    index.restrict(allowed or FORMATS, (created,))
    return index


@native("HeteroCreateUnitGraphFromCOO")
def unit_from_coo(
    num_types: int, num_src: int, num_dst: int, row: Any, col: Any, formats: Any, *_sorted: Any
) -> ResidentIndex:
    device = row.device if type(row) is DeviceArray else col.device
    src, dst = tensor_of(row, device), tensor_of(col, device)
    if src.shape != dst.shape or src.dim() != 1:
        raise DGLError(f"Expect both ends of the edges to be 1-D and of one length, but got "
                       f"{tuple(src.shape)} and {tuple(dst.shape)}.")  # fmt: skip
    relation = Relation.from_ends(src, dst, int(num_src), int(num_dst), int(num_types) == 1)
    return _restricted(ResidentIndex.of_relation(relation), formats)


@native("HeteroCreateUnitGraphFromCSR")
def unit_from_csr(
    num_types: int, num_src: int, num_dst: int, indptr: Any, others: Any, edge_ids: Any,
    formats: Any, by_dst: bool = False,
) -> ResidentIndex:  # fmt: skip
    given = [array for array in (indptr, others, edge_ids) if type(array) is DeviceArray]
    device = given[0].device
    bounds, ends, ids = (tensor_of(array, device) for array in (indptr, others, edge_ids))
    rows = int(num_dst if by_dst else num_src)
    if bounds.numel() != rows + 1 or ids.numel() not in (0, ends.numel()):
        raise DGLError(f"Expect {rows + 1} row bounds and an edge ID for each of {ends.numel()} "
                       f"edges or none, but got {bounds.numel()} and {ids.numel()}.")  # fmt: skip
    of_rows, ends = compressed_ends(bounds, ends, ids)
    src, dst = (ends, of_rows) if by_dst else (of_rows, ends)
    relation = Relation.from_ends(src, dst, int(num_src), int(num_dst), int(num_types) == 1)
    if ids.numel() == 0:
        relation.in_order = "dst" if by_dst else "src"
    made = ResidentIndex.of_relation(relation)
    return _restricted(made, formats, "csc" if by_dst else "csr")


@native("HeteroCreateHeteroGraph", "HeteroCreateHeteroGraphWithNumNodes")
def from_relations(meta: Any, units: Any, num_nodes: Any = None) -> Any:
    units = list(units)
    if not all(type(unit) is ResidentIndex for unit in units):
        places = sorted({str(getattr(unit, "device", "cpu")) for unit in units})
        raise DGLError(f"Expect all relations to be on one device, but got {', '.join(places)}.")
    ends = indices.meta_ends(meta)
    if num_nodes is None:
        counts = [0] * meta.num_nodes()
        for (src, dst), unit in zip(ends, units, strict=True):
            counts[src], counts[dst] = unit.relations[0].num_src, unit.relations[0].num_dst
    else:
        counts = [int(count) for count in num_nodes.asnumpy()]
    index = ResidentIndex.make(
        meta, counts, [unit.relations[0] for unit in units], units[0].device, ends=ends
    )
    allowed, created = (
        tuple(f for f in FORMATS if all(f in getattr(unit, which) for unit in units))
        for which in ("allowed", "created")
    )
    index.restrict(allowed or FORMATS, created)
    return index


# ---------------------------------------------------------------------- one graph, another form


@native("HeteroCopyTo")
def copy_to(index: ResidentIndex, device_type: int, device_id: int) -> Any:
    from dgl import ndarray as nd

    device = device_of(nd.DGLContext(device_type, device_id))
    return index.host() if device is None else index.moved(device)


@native("HeteroAsNumBits")
def as_num_bits(index: ResidentIndex, bits: int) -> ResidentIndex:
    return index.moved(index.device, torch.int32 if bits == 32 else torch.int64)


@native("HeteroGetFormatGraph")
def with_formats(index: ResidentIndex, formats: Any) -> ResidentIndex:
    found = index.moved(index.device)
    found._host = None
    found.restrict(format_names([formats] if isinstance(formats, str) else formats), index.created)
    return found


@native("HeteroGetRelationGraph")
def relation_graph(index: ResidentIndex, etype: int) -> ResidentIndex:
    found = ResidentIndex.of_relation(index.relations[int(etype)])
    found.restrict(index.allowed, index.created)
    return found


@native("HeteroReverse")
def reverse(index: ResidentIndex) -> ResidentIndex:
    ends = [(dst, src) for src, dst in index.ends]
    turned = {"coo": "coo", "csr": "csc", "csc": "csr"}
    found = ResidentIndex.make(
        indices.metagraph(index.num_types, tuple(ends)), index.counts,
        [relation.reversed() for relation in index.relations], index.device,
        idtype=index.idtype, ends=ends,
    )  # fmt: skip
    found.restrict(
        format_names(turned[f] for f in index.allowed),
        format_names(turned[f] for f in index.created),
    )
    return found


# ---------------------------------------------------------------------- many graphs, one


@native("HeteroDisjointUnion_v2")
def disjoint_union(meta: Any, graphs: Any) -> Any:
    graphs = list(graphs)
    if not all(type(graph) is ResidentIndex for graph in graphs):
        return NotImplemented
    first = graphs[0]
    counts = [sum(graph.counts[n] for graph in graphs) for n in range(first.num_types)]
    relations = []
    for etype, (src_type, dst_type) in enumerate(first.ends):
        src, dst = (
            _shifted(
                [graph.relations[etype].ends[side] for graph in graphs],
                [graph.counts[ntype] for graph in graphs],
            )
            for side, ntype in enumerate((src_type, dst_type))
        )
        relations.append(
            Relation.from_ends(src, dst, counts[src_type], counts[dst_type], src_type == dst_type)
        )
    return first.with_relations(relations, counts)


def _shifted(ids: list[torch.Tensor], counts: list[int]) -> torch.Tensor:
    """Ids of several graphs, one after the other, past the nodes of the graphs before."""
    joined = torch.cat(ids)
    before = torch.tensor([0, *counts[:-1]]).cumsum(0).to(joined.dtype)
    sizes = torch.tensor([part.numel() for part in ids])
    shift, sizes = (upload(array, joined.device) for array in (before, sizes))
    return joined + torch.repeat_interleave(shift, sizes, output_size=joined.numel())


@native("HeteroJointUnion")
def joint_union(meta: Any, graphs: Any) -> Any:
    graphs = list(graphs)
    if not all(type(graph) is ResidentIndex for graph in graphs):
        return NotImplemented
    first = graphs[0]
    if any(graph.counts != first.counts for graph in graphs):
        raise DGLError("Expect all graphs to have the same number of nodes of each type.")
    relations = []
    for etype, relation in enumerate(first.relations):
        src, dst = zip(*(graph.relations[etype].ends for graph in graphs), strict=True)
        relations.append(
            Relation.from_ends(
                torch.cat(src), torch.cat(dst), relation.num_src, relation.num_dst,
                relation.same_type,
            )
        )  # fmt: skip
    return first.with_relations(relations)


@native("HeteroSlice")
def slice_of_batch(
    index: ResidentIndex, num_nodes: Any, first_node: Any, num_edges: Any, first_edge: Any
) -> ResidentIndex:
    given = (num_nodes, first_node, num_edges, first_edge)
    nodes, starts, edges, first = ([int(n) for n in array.asnumpy()] for array in given)
    relations = []
    for etype, (src_type, dst_type) in enumerate(index.ends):
        src, dst = index.relations[etype].ends
        part = slice(first[etype], first[etype] + edges[etype])
        relations.append(
            Relation.from_ends(
                src[part] - starts[src_type], dst[part] - starts[dst_type],
                nodes[src_type], nodes[dst_type], src_type == dst_type,
            )
        )  # fmt: skip
    return index.with_relations(relations, nodes)


class Flattened:
    """Several relations as one, in the form of DGL's ``FlattenedHeteroGraph``."""

    def __init__(self, graph: ResidentIndex, arrays: dict[str, torch.Tensor]) -> None:
        self.graph = graph
        for name, tensor in arrays.items():
            setattr(self, name, DeviceArray(tensor))


@native("HeteroGetFlattenedGraph")
def flatten(index: ResidentIndex, etypes: Any) -> Flattened:
    etypes = [int(etype) for etype in etypes]
    src_types = sorted({index.ends[etype][0] for etype in etypes})
    dst_types = sorted({index.ends[etype][1] for etype in etypes})
    device, dtype = index.device, index.idtype
    arrays: dict[str, torch.Tensor] = {}
    offsets = {}
    for end, types in (("src", src_types), ("dst", dst_types)):
        sizes = torch.tensor([index.counts[n] for n in types], device=device)
        names = torch.tensor(types, device=device)
        total = sum(index.counts[n] for n in types)
        arrays[f"induced_{end}type_set"] = names
        arrays[f"induced_{end}type"] = torch.repeat_interleave(names, sizes, output_size=total)
        arrays[f"induced_{end}id"] = _within(sizes, total)
        begins = torch.cumsum(sizes, 0) - sizes
        offsets[end] = dict(zip(types, begins.tolist(), strict=True))
    chosen = [index.relations[etype] for etype in etypes]
    sizes = torch.tensor([relation.num_edges for relation in chosen], device=device)
    total = sum(relation.num_edges for relation in chosen)
    names = torch.tensor(etypes, device=device)
    arrays["induced_etype_set"] = torch.unique(names)
    of_edge = torch.repeat_interleave(names, sizes, output_size=total)
    arrays["induced_etype"] = of_edge.to(dtype)
    arrays["induced_eid"] = _within(sizes, total).to(dtype)
    src, dst = (
        torch.cat(
            [
                index.relations[etype].ends[side] + offsets[end][index.ends[etype][side]]
                for etype in etypes
            ]
        ).to(dtype)
        for side, end in enumerate(("src", "dst"))
    )
    relation = Relation.from_ends(
        src, dst, sum(index.counts[n] for n in src_types), sum(index.counts[n] for n in dst_types),
        src_types == dst_types,
    )  # fmt: skip
    return Flattened(ResidentIndex.of_relation(relation), arrays)


def _within(sizes: torch.Tensor, total: int) -> torch.Tensor:
    """0, 1, ... within each of several groups."""
    begins = torch.repeat_interleave(torch.cumsum(sizes, 0) - sizes, sizes, output_size=total)
    return torch.arange(total, device=sizes.device) - begins

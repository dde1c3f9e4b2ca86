"""Looking up nodes, edges, degrees and adjacency, on the device."""

from __future__ import annotations

from typing import Any

import torch
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence import index as indices
from gnn_backend.adapters.dgl.residence.arrays import Arrays, DeviceArray, context_of, tensor_of
from gnn_backend.adapters.dgl.residence.index import DTYPE_NAMES, ResidentIndex
from gnn_backend.adapters.dgl.residence.mirror import Relation
from gnn_backend.adapters.dgl.residence.native import native
from gnn_backend.adapters.dgl.residence.streams import stream_of
from gnn_backend.graph import CSR

# ---------------------------------------------------------------------- helpers


def check_ids(ids: Tensor, count: int, what: str) -> None:
    """Raise DGLError for an id outside ``[0, count)``; a device would only abort."""
    if ids.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(ids)).tolist()
    if low < 0 or high >= count:
        bad = low if low < 0 else high
        raise DGLError(f"Expect {what} IDs to be in the range [0, {count}), but got {bad}.")


def neighbours(csr: CSR, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Position in ``rows`` and position in the CSR of every neighbour of ``rows``, int64."""
    rows = rows.long()
    begin = csr.indptr[rows].long()
    degree = csr.indptr[rows + 1].long() - begin
    total = int(degree.sum())
    number = torch.arange(rows.numel(), device=rows.device)
    owner = torch.repeat_interleave(number, degree, output_size=total)
    shift = begin - (torch.cumsum(degree, 0) - degree)
    return owner, torch.arange(total, device=rows.device) + shift[owner]


def edge_ids(csr: CSR, positions: Tensor) -> Tensor:
    """Edge ids at positions of a CSR."""
    return positions if csr.edge_ids is None else csr.edge_ids[positions]


def _relation(index: ResidentIndex, etype: Any) -> Relation:
    return index.relations[int(etype)]


def _answers(index: ResidentIndex, direction: str) -> bool:
    """Whether the allowed formats let stock DGL find the edges at one end of a node."""
    return "coo" in index.allowed or ("csc" if direction == "dst" else "csr") in index.allowed


# ---------------------------------------------------------------------- sizes and properties


@native("HeteroGetMetaGraph")
def metagraph(index: ResidentIndex) -> Any:
    return index.meta


@native("HeteroIsMetaGraphUniBipartite")
def is_unibipartite(index: ResidentIndex) -> bool:
    return {src for src, _ in index.ends}.isdisjoint(dst for _, dst in index.ends)


@native("HeteroNumVertices")
def num_nodes(index: ResidentIndex, ntype: int) -> int:
    return index.counts[_type(ntype, index.num_types, "node")]


@native("HeteroNumEdges")
def num_edges(index: ResidentIndex, etype: int) -> int:
    return index.relations[_type(etype, len(index.relations), "edge")].num_edges


def _type(number: int, count: int, what: str) -> int:
    number = int(number)
    if not 0 <= number < count:
        raise DGLError(f"Invalid {what} type {number}: there are {count}.")
    return number


@native("HeteroDataType")
def data_type(index: ResidentIndex) -> str:
    return DTYPE_NAMES[index.idtype]


@native("HeteroNumBits")
def num_bits(index: ResidentIndex) -> int:
    return 32 if index.idtype == torch.int32 else 64


@native("HeteroContext")
def context(index: ResidentIndex) -> Any:
    return context_of(index.device)


@native("HeteroIsReadonly")
def is_readonly(index: ResidentIndex) -> bool:
    return True


@native("HeteroIsMultigraph")
def is_multigraph(index: ResidentIndex) -> bool:
    found = [
        (keys[1:] == keys[:-1]).any()
        for keys in (relation.keys[0] for relation in index.relations)
        if keys.numel() > 1
    ]
    return bool(found) and bool(torch.stack(found).any())


@native("HeteroGetAllowedFormats")
def allowed_formats(index: ResidentIndex) -> list[str]:
    return list(index.allowed)


@native("HeteroGetCreatedFormats")
def created_formats(index: ResidentIndex) -> list[str]:
    return list(index.created)


@native("HeteroCreateFormat")
def create_formats(index: ResidentIndex) -> None:
    for relation in index.relations:
        relation.create_all()
    index.created = index.allowed


@native("HeteroIsPinned")
def is_pinned(index: ResidentIndex) -> bool:
    return False


@native("HeteroPinMemory", "HeteroPinMemory_")
def pin_memory(index: ResidentIndex) -> Any:
    raise DGLError(f"Only a graph on the CPU can be pinned, but got one on {index.device}.")


@native("HeteroUnpinMemory_")
def unpin_memory(index: ResidentIndex) -> ResidentIndex:
    return index


# ---------------------------------------------------------------------- nodes and edges


@native("HeteroHasVertices")
def has_nodes(index: ResidentIndex, ntype: int, nodes: Any) -> DeviceArray:
    ids = tensor_of(nodes, index.device)
    return DeviceArray(((ids >= 0) & (ids < index.counts[int(ntype)])).to(ids.dtype))


@native("HeteroEdges")
def edges(index: ResidentIndex, etype: int, order: str | None) -> Any:
    relation = _relation(index, etype)
    src, dst = relation.ends
    if order == "eid" and "coo" not in index.allowed:
        return NotImplemented  # stock refuses it, as wherever a restricted graph goes there
    if order == "srcdst":
        ids = relation.keys[1]
        return Arrays(src[ids], dst[ids], ids.to(src.dtype))
    return Arrays(src, dst, torch.arange(src.numel(), dtype=src.dtype, device=src.device))


@native("HeteroFindEdges")
def find_edges(index: ResidentIndex, etype: int, ids: Any) -> Any:
    if "coo" not in index.allowed:
        return NotImplemented
    relation = _relation(index, etype)
    eids = tensor_of(ids, index.device)
    check_ids(eids, relation.num_edges, "edge")
    src, dst = relation.ends
    return Arrays(src[eids.long()], dst[eids.long()], eids)


def _pairs(relation: Relation, u: Any, v: Any) -> tuple[Tensor, Tensor]:
    src, dst = tensor_of(u, relation.device), tensor_of(v, relation.device)
    check_ids(src, relation.num_src, "source node")
    check_ids(dst, relation.num_dst, "destination node")
    if src.numel() != dst.numel() and 1 not in (src.numel(), dst.numel()):
        raise DGLError(f"Expect as many sources as destinations, or one of either, but got "
                       f"{src.numel()} and {dst.numel()}.")  # fmt: skip
    found: Any = torch.broadcast_tensors(src, dst)
    return found


@native("HeteroHasEdgesBetween")
def has_edges_between(index: ResidentIndex, etype: int, u: Any, v: Any) -> DeviceArray:
    relation = _relation(index, etype)
    src, dst = _pairs(relation, u, v)
    found = _first(relation, src, dst)
    return DeviceArray((found >= 0).to(src.dtype))


@native("HeteroHasEdgeBetween")
def has_edge_between(index: ResidentIndex, etype: int, u: int, v: int) -> bool:
    src, dst = (torch.tensor([int(end)], device=index.device) for end in (u, v))
    return bool((_first(_relation(index, etype), src, dst) >= 0).any())


def _first(relation: Relation, src: Tensor, dst: Tensor) -> Tensor:
    """Smallest edge id between each pair, or -1; int64."""
    keys, ids = relation.keys
    if keys.numel() == 0:
        return torch.full(src.shape, -1, device=src.device)
    wanted = relation.key(src, dst)
    at = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
    return torch.where(keys[at] == wanted, ids[at], -1)


@native("HeteroEdgeIdsOne")
def edge_ids_one(index: ResidentIndex, etype: int, u: Any, v: Any) -> DeviceArray:
    relation = _relation(index, etype)
    src, dst = _pairs(relation, u, v)
    return DeviceArray(_first(relation, src, dst).to(index.idtype))


@native("HeteroEdgeIdsAll", "HeteroEdgeId")
def edge_ids_all(index: ResidentIndex, etype: int, u: Any, v: Any) -> Arrays:
    relation = _relation(index, etype)
    if isinstance(u, int):
        u, v = (DeviceArray(torch.tensor([end], device=index.device)) for end in (u, v))
    src, dst = _pairs(relation, u, v)
    keys, ids = relation.keys
    wanted = relation.key(src, dst)
    begin = torch.searchsorted(keys, wanted)
    count = torch.searchsorted(keys, wanted, right=True) - begin
    total = int(count.sum())
    number = torch.arange(src.numel(), device=index.device)
    owner = torch.repeat_interleave(number, count, output_size=total)
    shift = begin - (torch.cumsum(count, 0) - count)
    found = ids[torch.arange(total, device=index.device) + shift[owner]]
    return Arrays(src[owner], dst[owner], found.to(index.idtype))


@native("HeteroPredecessors")
def predecessors(index: ResidentIndex, etype: int, v: int) -> DeviceArray:
    return _adjacent(index, _relation(index, etype), "dst", v)


@native("HeteroSuccessors")
def successors(index: ResidentIndex, etype: int, v: int) -> DeviceArray:
    return _adjacent(index, _relation(index, etype), "src", v)


def _adjacent(index: ResidentIndex, relation: Relation, direction: Any, v: int) -> DeviceArray:
    node = torch.tensor([int(v)], device=index.device)
    count = relation.num_dst if direction == "dst" else relation.num_src
    check_ids(node, count, "node")
    csr = relation.graph.csr(direction)
    _, positions = neighbours(csr, node)
    return DeviceArray(csr.indices[positions].to(index.idtype))


@native("HeteroInEdges_2", "HeteroInEdges_1")
def in_edges(index: ResidentIndex, etype: int, v: Any) -> Any:
    if not _answers(index, "dst"):
        return NotImplemented
    others, nodes, ids = _edges_of(index, etype, "dst", v)
    return Arrays(others, nodes, ids)


@native("HeteroOutEdges_2", "HeteroOutEdges_1")
def out_edges(index: ResidentIndex, etype: int, v: Any) -> Any:
    if not _answers(index, "src"):
        return NotImplemented
    others, nodes, ids = _edges_of(index, etype, "src", v)
    return Arrays(nodes, others, ids)


def _edges_of(
    index: ResidentIndex, etype: int, direction: Any, v: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Other ends, given nodes and ids of the edges at nodes ``v``."""
    relation = _relation(index, etype)
    if isinstance(v, int):
        v = DeviceArray(torch.tensor([v], device=index.device, dtype=index.idtype))
    nodes = tensor_of(v, index.device)
    check_ids(nodes, relation.num_dst if direction == "dst" else relation.num_src, "node")
    csr = relation.graph.csr(direction)
    owner, positions = neighbours(csr, nodes)
    others = csr.indices[positions].to(index.idtype)
    return others, nodes[owner], edge_ids(csr, positions).to(index.idtype)


@native("HeteroInDegrees")
def in_degrees(index: ResidentIndex, etype: int, v: Any) -> Any:
    return _degrees(index, etype, "dst", v)


@native("HeteroOutDegrees")
def out_degrees(index: ResidentIndex, etype: int, v: Any) -> Any:
    return _degrees(index, etype, "src", v)


def _degrees(index: ResidentIndex, etype: int, direction: Any, v: Any) -> Any:
    if not _answers(index, direction):
        return NotImplemented
    relation = _relation(index, etype)
    nodes = tensor_of(v, index.device).long()
    check_ids(nodes, relation.num_dst if direction == "dst" else relation.num_src, "node")
    indptr = relation.graph.csr(direction).indptr
    return DeviceArray((indptr[nodes + 1] - indptr[nodes]).to(index.idtype))


@native("HeteroGetAdj")
def adjacency(index: ResidentIndex, etype: int, transpose: bool, form: str) -> Any:
    relation = _relation(index, etype)
    if form == "coo":
        src, dst = relation.ends
        return Arrays(torch.cat((dst, src) if transpose else (src, dst)))
    wanted = "csc" if transpose else "csr"
    if wanted not in index.allowed or ("coo" not in index.created and relation.from_host):
        return NotImplemented  # refused by stock, or in an order of rows that stock alone knows
    direction: Any = "dst" if transpose else "src"
    csr = relation.graph.csr(direction)
    ids = csr.edge_ids
    if relation.in_order == direction:
        ids = csr.indices[:0]  # as DGL tells that they are in order
    elif ids is None:
        ids = torch.arange(relation.num_edges, device=index.device)
    return Arrays(*(array.to(index.idtype) for array in (csr.indptr, csr.indices, ids)))


@native("HeteroRecordStream")
def record_stream(index: ResidentIndex, stream: Any) -> ResidentIndex:
    current = stream_of(stream, index.device)
    for relation in index.relations:
        for tensor in relation.tensors():
            tensor.record_stream(current)
    return index


__all__ = ["check_ids", "edge_ids", "indices", "neighbours"]

"""The structure of one relation: its edge list, its Graph, its twin on the CPU.

Each form is made when it is first asked for, from whichever there is, and kept. Relations are
immutable and shared: a heterogeneous graph, its slices and its clones hold the same ones, so that a
structure is uploaded and sorted once.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from dgl import heterograph_index as hi
from torch import Tensor

from gnn_backend.adapters.dgl.residence import arrays
from gnn_backend.adapters.dgl.residence.streams import Ready, upload
from gnn_backend.bindings import stock
from gnn_backend.graph import Graph

FORMATS = ("coo", "csr", "csc")


class Relation:
    """Edges between two node types (or one and the same) on a device.

    Attributes
    ----------
    num_src, num_dst, num_edges : int
    same_type : bool
        Whether both ends are of one node type.
    dtype : torch.dtype
        int32 or int64, of all ids.
    device : torch.device
    in_order : "src", "dst" or None
        By which end the edges were given compressed, so that they are in the order of their ids.
    from_host : bool
        Whether it was made from an index of DGL's own.
    derived : Any
        Place for what an adapter derives from the structure and wants shared with it.
    """

    def __init__(
        self,
        num_src: int,
        num_dst: int,
        num_edges: int,
        same_type: bool,
        dtype: torch.dtype,
        device: torch.device,
        *,
        ends: tuple[Tensor, Tensor] | None = None,
        host: Any = None,
        origin: Relation | None = None,
    ) -> None:
        self.num_src, self.num_dst, self.num_edges = num_src, num_dst, num_edges
        self.same_type, self.dtype, self.device = same_type, dtype, device
        self.derived: Any = None
        self.in_order: str | None = None
        self._ends = ends
        self._host = host
        self.from_host = host is not None
        self._graph: Graph | None = None
        self._keys: tuple[Tensor, Tensor] | None = None
        self._origin = origin  # what this is the reversal of
        self._reversal: weakref.ref[Relation] | None = None
        self._ready = Ready(device)
        self._lock = threading.RLock()
        if ends is not None:
            self._ready.made(*ends)

    @classmethod
    def from_ends(
        cls, src: Tensor, dst: Tensor, num_src: int, num_dst: int, same_type: bool
    ) -> Relation:
        """Relation of edges that are on the device; they are kept, not copied."""
        ends = (src.contiguous(), dst.contiguous())
        return cls(
            num_src, num_dst, src.numel(), same_type, src.dtype, src.device, ends=ends
        )  # fmt: skip

    # ------------------------------------------------------------------ forms

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Sources and destinations [E], in the order of edge ids."""
        if self._ends is None:
            with self._lock:
                if self._ends is None:
                    made = self._make_ends()
                    self._ready.made(*made)
                    self._ends = made
        self._ready.wait()
        return self._ends

    def _make_ends(self) -> tuple[Tensor, Tensor]:
        if self._origin is not None:
            src, dst = self._origin.ends
            return dst, src
        src, dst = host_ends(self._host)
        return upload(src, self.device), upload(dst, self.device)

    @property
    def graph(self) -> Graph:
        """The sorted structure that operators, layers and queries share."""
        if self._graph is None:
            with self._lock:
                if self._graph is None:
                    made = self._make_graph()
                    self._ready.made(made.by_dst.indptr, made.by_dst.indices)
                    self._graph = made
        self._ready.wait()
        return self._graph

    def _make_graph(self) -> Graph:
        other = self._origin or (self._reversal() if self._reversal is not None else None)
        if other is not None and other._graph is not None:
            return other.graph.reversed()
        return Graph.from_edges(*self.ends, self.num_src, self.num_dst)

    @property
    def keys(self) -> tuple[Tensor, Tensor]:
        """Every edge as ``source * num_dst + destination``, ascending, int64, and its edge id."""
        if self._keys is None:
            with self._lock:
                if self._keys is None:
                    src, dst = self.ends
                    made = torch.sort(self.key(src, dst), stable=True)
                    self._ready.made(*made)
                    self._keys = (made.values, made.indices)
        self._ready.wait()
        return self._keys

    def key(self, src: Tensor, dst: Tensor) -> Tensor:
        """The keys of pairs of nodes."""
        return src.long() * self.num_dst + dst.long()

    def host(self) -> Any:
        """DGL's own index of this relation alone, on the CPU."""
        if self._host is None:
            with self._lock:
                if self._host is None:
                    src, dst = (end.cpu() for end in self.ends)
                    to_dgl = arrays._stock("zerocopy_to_dgl_ndarray")
                    self._host = enter(
                        hi._CAPI_DGLHeteroCreateUnitGraphFromCOO,
                        1 if self.same_type else 2, self.num_src, self.num_dst,
                        to_dgl(src), to_dgl(dst), list(FORMATS), False, False,
                    )  # fmt: skip
        return self._host

    def create_all(self) -> None:
        """Make every format now."""
        _ = self.graph.by_src

    # ------------------------------------------------------------------ derived relations

    def reversed(self) -> Relation:
        """The relation with every edge turned round; shares the Graph."""
        if self._origin is not None:
            return self._origin
        with self._lock:
            found = self._reversal() if self._reversal is not None else None
            if found is None:
                found = Relation(
                    self.num_dst, self.num_src, self.num_edges, self.same_type, self.dtype,
                    self.device, origin=self,
                )  # fmt: skip
                self._reversal = weakref.ref(found)
        return found

    def to(self, device: torch.device, dtype: torch.dtype) -> Relation:
        """The relation on another device or with other ids; itself if nothing changes."""
        if device == self.device and dtype == self.dtype:
            return self
        if self._ends is None and self._host is not None and dtype == self.dtype:
            return Relation(
                self.num_src, self.num_dst, self.num_edges, self.same_type, dtype, device,
                host=self._host,
            )  # fmt: skip
        src, dst = (end.to(device=device, dtype=dtype) for end in self.ends)
        found = Relation.from_ends(src, dst, self.num_src, self.num_dst, self.same_type)
        if device == self.device:
            found._graph = self._graph  # whose ids are 32 bits wide in any case
        return found

    def tensors(self) -> list[Tensor]:
        """What is held on the device now."""
        held = [*(self._ends or ()), *(self._keys or ())]
        for csr in (self._graph.by_dst, self._graph._by_src) if self._graph else ():
            if csr is not None:
                held += [csr.indptr, csr.indices]
                held += [csr._edge_ids] if isinstance(csr._edge_ids, Tensor) else []
        return held


# ---------------------------------------------------------------------- DGL's own index


def enter(function: Any, *args: Any) -> Any:
    """Call a packed function with arguments that C++ knows, past the boundary."""
    return stock(type(function).__call__)(function, *args)


def format_names(names: Any) -> tuple[str, ...]:
    """Names of sparse formats that C++ lists, in the usual order."""
    given = {str(name) for name in names}
    return tuple(name for name in FORMATS if name in given)


def host_ends(host: Any, etype: int = 0) -> tuple[Tensor, Tensor]:
    """Both ends of the edges of a CPU index, in the order of edge ids, whatever its formats."""
    from_dgl = arrays._stock("zerocopy_from_dgl_ndarray")
    found = _stored_ends(host, etype)
    if found is not None:
        return from_dgl(found[0]), from_dgl(found[1])
    allowed = format_names(enter(hi._CAPI_DGLHeteroGetAllowedFormats, host))
    if "coo" in allowed:
        found = enter(hi._CAPI_DGLHeteroEdges, host, etype, "eid")
        return from_dgl(enter(found, 0)), from_dgl(enter(found, 1))
    by_dst = "csc" in allowed
    found = enter(hi._CAPI_DGLHeteroGetAdj, host, etype, by_dst, "csr")
    indptr, others, edge_ids = (from_dgl(enter(found, i)) for i in range(3))
    rows, others = compressed_ends(indptr, others, edge_ids)
    return (others, rows) if by_dst else (rows, others)


def _stored_ends(host: Any, etype: int) -> tuple[Any, Any] | None:
    """Both ends as they are stored, if that is in the order of edge ids.

    Asking for the edges would write all their ids as well, which takes longer than everything else.
    """
    unit = enter(hi._CAPI_DGLHeteroGetRelationGraph, host, etype)
    if "coo" not in format_names(enter(hi._CAPI_DGLHeteroGetCreatedFormats, unit)):
        return None
    states = enter(hi._CAPI_DGLHeteroPickle, unit)
    if enter(hi._CAPI_DGLHeteroPickleStatesGetArraysNum, states) != 2:  # with ids, or another form
        return None
    get = enter(hi._CAPI_DGLHeteroPickleStatesGetArrays, states)
    return enter(get, 0), enter(get, 1)


def compressed_ends(indptr: Tensor, others: Tensor, edge_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and other ends of compressed edges, in the order of their ids (empty: as they stand)."""
    ids = torch.arange(indptr.numel() - 1, dtype=others.dtype, device=others.device)
    rows = torch.repeat_interleave(ids, indptr.diff().long(), output_size=others.numel())
    if edge_ids.numel() == 0:
        return rows, others
    order = torch.argsort(edge_ids)
    return rows[order], others[order]

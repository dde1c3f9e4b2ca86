"""`ResidentIndex`: what a resident DGLGraph has in the place of DGL's own graph index."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from dgl import _api_internal, graph_index
from dgl import heterograph_index as hi

from gnn_backend.adapters.dgl.residence import arrays, boundary
from gnn_backend.adapters.dgl.residence.mirror import FORMATS, Relation, enter, format_names

_DTYPES = {"int32": torch.int32, "int64": torch.int64}
DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class ResidentIndex(hi.HeteroGraphIndex):
    """A heterogeneous graph index whose relations live on a device.

    DGL's methods are inherited; the packed functions they call are answered by
    :mod:`gnn_backend.adapters.dgl.residence.native`, or by :meth:`host`, DGL's own index of the
    same graph on the CPU, which is made when a detour needs it.

    Attributes
    ----------
    device : torch.device
    meta : dgl.graph_index.GraphIndex
        The graph of node types and relations.
    ends : list of (int, int)
        Node types of each relation.
    counts : list of int
        Nodes of each type.
    relations : list of Relation
    idtype : torch.dtype
    allowed : tuple of str
        Sparse formats that it may be stored in.
    created : tuple of str
        Those that it tells of as created; on the device each is made when it is needed.
    """

    device: torch.device
    counts: list[int]
    relations: list[Relation]
    ends: list[tuple[int, int]]
    idtype: torch.dtype
    allowed: tuple[str, ...]
    created: tuple[str, ...]
    _host: Any

    # DGL's object answers an unknown attribute from C++, through a handle that this has not got.
    __getattribute__ = object.__getattribute__
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    @classmethod
    def make(
        cls,
        meta: Any,
        counts: Sequence[int],
        relations: Sequence[Relation],
        device: torch.device,
        *,
        idtype: torch.dtype | None = None,
        ends: Sequence[tuple[int, int]] | None = None,
        allowed: tuple[str, ...] = FORMATS,
        created: tuple[str, ...] = ("coo",),
        host: Any = None,
    ) -> ResidentIndex:
        """Assemble an index of relations, which are shared, not copied."""
        self = cls.__new__(cls)
        placeholder = _api_internal._List()  # of another type than C++ expects, so it refuses it
        self.handle, placeholder.handle = placeholder.handle, None
        self.device, self.meta, self.counts = device, meta, list(counts)
        self.relations = list(relations)
        self.ends = list(meta_ends(meta) if ends is None else ends)
        self.idtype = idtype or (self.relations[0].dtype if self.relations else torch.int64)
        self.restrict(allowed, created)
        self._host = host
        boundary.activate()
        return self

    @classmethod
    def of_relation(cls, relation: Relation) -> ResidentIndex:
        """The index of one relation alone."""
        if relation.same_type:
            meta, ends, counts = unit_metagraph(1), [(0, 0)], [relation.num_src]
        else:
            meta, ends = unit_metagraph(2), [(0, 1)]
            counts = [relation.num_src, relation.num_dst]
        return cls.make(meta, counts, [relation], relation.device, ends=ends)

    @property
    def num_types(self) -> int:
        return len(self.counts)

    @property
    def unrestricted(self) -> bool:
        return len(self.allowed) == len(FORMATS)

    def restrict(self, allowed: tuple[str, ...], created: tuple[str, ...]) -> None:
        """Set the allowed formats; of the created ones those stay that are allowed."""
        self.allowed = allowed
        self.created = tuple(f for f in allowed if f in created) or allowed[:1]

    def with_relations(self, relations: Sequence[Relation], counts: Any = None) -> ResidentIndex:
        """The same types with other edges; formats are unrestricted."""
        return type(self).make(
            self.meta, self.counts if counts is None else counts, relations, self.device,
            idtype=self.idtype, ends=self.ends,
        )  # fmt: skip

    def moved(self, device: torch.device, idtype: torch.dtype | None = None) -> ResidentIndex:
        """The same graph on another device, or with ids of another type; shares what it can."""
        idtype = idtype or self.idtype
        relations = [relation.to(device, idtype) for relation in self.relations]
        return type(self).make(
            self.meta, self.counts, relations, device,
            idtype=idtype, ends=self.ends, allowed=self.allowed, created=self.created,
            host=self._host if idtype == self.idtype else None,
        )  # fmt: skip

    def host(self) -> Any:
        """DGL's own index of this graph, on the CPU."""
        if self._host is None:
            counts = arrays._stock("zerocopy_to_dgl_ndarray")(torch.tensor(self.counts))
            host = enter(
                hi._CAPI_DGLHeteroCreateHeteroGraphWithNumNodes,
                self.meta, [relation.host() for relation in self.relations], counts,
            )  # fmt: skip
            if not self.unrestricted:
                host = enter(hi._CAPI_DGLHeteroGetFormatGraph, host, list(self.allowed))
            self._host = host
        return self._host

    def __reduce__(self) -> Any:
        return rebuild, (self.host(), str(self.device), self.created)

    def __deepcopy__(self, memo: dict[int, Any]) -> ResidentIndex:
        return self.moved(self.device)


def from_host(host: Any, device: torch.device) -> ResidentIndex:
    """Make a CPU index of DGL resident; its edges are uploaded when they are first asked for."""
    meta = enter(hi._CAPI_DGLHeteroGetMetaGraph, host)
    ends = meta_ends(meta)
    counts = [
        int(enter(hi._CAPI_DGLHeteroNumVertices, host, ntype)) for ntype in range(meta.num_nodes())
    ]
    idtype = _DTYPES[str(enter(hi._CAPI_DGLHeteroDataType, host))]
    relations = []
    for etype, (src, dst) in enumerate(ends):
        unit = enter(hi._CAPI_DGLHeteroGetRelationGraph, host, etype)
        num_edges = int(enter(hi._CAPI_DGLHeteroNumEdges, host, etype))
        relations.append(
            Relation(counts[src], counts[dst], num_edges, src == dst, idtype, device, host=unit)
        )
    formats = (hi._CAPI_DGLHeteroGetAllowedFormats, hi._CAPI_DGLHeteroGetCreatedFormats)
    allowed, created = (format_names(enter(function, host)) for function in formats)
    return ResidentIndex.make(
        meta, counts, relations, device,
        idtype=idtype, ends=ends, allowed=allowed, created=created, host=host,
    )  # fmt: skip


def rebuild(host: Any, device: str, created: tuple[str, ...] = ()) -> Any:
    """Unpickle: resident again, or on the CPU where the device is missing."""
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        return host
    index = from_host(host, place)
    index.restrict(index.allowed, created or index.created)
    return index


# ---------------------------------------------------------------------- metagraphs


def meta_ends(meta: Any) -> list[tuple[int, int]]:
    """Node types of each relation of a metagraph."""
    src, dst, _ = meta.edges("eid")
    return list(zip(src.tonumpy().tolist(), dst.tonumpy().tolist(), strict=True))


@functools.lru_cache(maxsize=1024)
def metagraph(num_types: int, ends: tuple[tuple[int, int], ...]) -> Any:
    """The metagraph with these relations; immutable, so one serves all."""
    src, dst = [s for s, _ in ends], [d for _, d in ends]
    return graph_index.from_coo(num_types, src, dst, True)


def unit_metagraph(num_types: int) -> Any:
    """The metagraph of one relation, within one node type or between two."""
    return metagraph(num_types, ((0, num_types - 1),))

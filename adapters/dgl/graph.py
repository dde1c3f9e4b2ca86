"""`Graph` of a DGLGraph, and where it is kept.

A graph's structure lives in ``g._graph`` (DGL's ``HeteroGraphIndex``), which DGL never changes in
place: ``add_edges`` and its kin give ``g`` a new index, ``local_var`` and ``clone`` share the
old one, and pickling leaves out the index's ``_cache`` dictionary. So what is derived from the
structure is kept in that dictionary: it follows the graph, and dies with it.

Relation slices ``hg[etype]`` are fresh objects at every call. While the package is enabled,
``HeteroGraphIndex.get_relation_graph`` hands each slice the entry of its parent
(:func:`sharing_with_parent`), so a relation's Graph is built once.

A graph that lives on CUDA keeps its Graph with its resident relations (``residence.mirror``), which
slices, clones and parents share; there the entry is found.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.layers.hetero.union import Union

if TYPE_CHECKING:
    from dgl import DGLGraph
    from dgl.heterograph_index import HeteroGraphIndex

_RELATION = "gnn_backend-relation-"
_REASON = "gnn_backend-reason"


class Entry:
    """What is derived from the structure of one relation, built on first use.

    Shared by the index it belongs to and the slices cut from it; refers to neither.
    """

    __slots__ = ("_lock", "_zero_in_degree", "graph")

    def __init__(self) -> None:
        self.graph: Graph | None = None
        self._zero_in_degree: bool | None = None
        self._lock = threading.Lock()

    def build(self, index: HeteroGraphIndex, etype: int = 0) -> Graph:
        """The Graph of relation ``etype`` of ``index``, the one that this entry belongs to."""
        graph = self.graph
        if graph is None:
            with self._lock:
                graph = self.graph
                if graph is None:
                    graph = self.graph = _build(index, etype)
        return graph

    def zero_in_degree(self, graph: Graph) -> bool:
        """Whether any destination of this entry's Graph has no in-edge; answered once."""
        if self._zero_in_degree is None:
            self._zero_in_degree = bool((graph.by_dst.indptr.diff() == 0).any())
        return self._zero_in_degree


def resident_relation(index: HeteroGraphIndex, etype: int = 0) -> Any:
    """The relation of a graph that lives on CUDA, or None for one of DGL's own."""
    relations = vars(index).get("relations")
    return None if relations is None else relations[etype]


def entry(index: HeteroGraphIndex, etype: int = 0) -> Entry:
    """The entry of relation ``etype`` in the cache of ``index``, or with its resident relation."""
    relation = resident_relation(index, etype)
    if relation is not None:
        if relation.derived is None:
            relation.derived = Entry()
        return relation.derived
    key = f"{_RELATION}{etype}"
    found = index._cache.get(key)
    return found if found is not None else index._cache.setdefault(key, Entry())


def graph_of(g: DGLGraph) -> Graph:
    """Return the Graph of a DGLGraph with one relation, cached with the DGLGraph's structure.

    Parameters
    ----------
    g : DGLGraph
        Homogeneous, a block, a batch, or a relation slice ``hg[etype]``; int32 or int64.

    Returns
    -------
    Graph
        Edges keep their DGL ids.

    Raises
    ------
    Unsupported
        ``graph-type``: several relations, or node types apart from the relation's two ends;
        ``dgl-no-cuda``: the graph is on a device that it is not resident on;
        ``dgl-restricted-format``: restricted to
        CSR, which has neither in-edges nor an edge list.
    """
    reason = unsupported_reason(g)
    if reason is not None:
        raise Unsupported(reason)
    return entry(g._graph).build(g._graph)


def unsupported_reason(g: DGLGraph) -> str | None:
    """Reason code why ``g`` has no Graph, or None; formats are looked at when building."""
    index = g._graph
    reason = index._cache.get(_REASON)
    if reason is None:
        reason = index._cache[_REASON] = _index_reason(index)
    return reason or None


def _index_reason(index: HeteroGraphIndex) -> str:
    meta = index.metagraph
    if meta.num_edges() != 1:
        return "graph-type"
    source_type, destination_type = meta.find_edge(0)
    if meta.num_nodes() != len({source_type, destination_type}):
        return "graph-type"
    if resident_relation(index) is not None:
        return "" if {"coo", "csc"} & set(index.allowed) else "dgl-restricted-format"
    return "" if index.ctx.device_type == 1 else "dgl-no-cuda"  # DLPack's number of the CPU


def _build(index: HeteroGraphIndex, etype: int) -> Graph:
    """Build from the in-edge format if DGL has it, else from the edge list.

    An edge list costs one counting sort here; asking DGL for its in-edge format instead would
    cost the same and leave a second copy behind.
    """
    relation = resident_relation(index, etype)
    if relation is not None:
        return relation.graph
    source_type, destination_type = index.metagraph.find_edge(etype)
    num_src, num_dst = index.num_nodes(source_type), index.num_nodes(destination_type)
    formats = index.formats()
    created, allowed = formats["created"], formats["created"] + formats["not created"]
    if "csc" in created or ("coo" not in created and "csc" in allowed):
        _, _, indptr, indices, edge_ids = index.adjacency_matrix_tensors(etype, True, "csr")
        identity = edge_ids.numel() == 0
        return Graph.from_csr(indptr, indices, num_src, None if identity else edge_ids)
    if "coo" in allowed:
        src, dst, _ = index.edges(etype, "eid")
        return Graph.from_edge_index(torch.stack((src, dst)), num_src, num_dst)
    raise Unsupported(
        "dgl-restricted-format",
        f"the graph is restricted to {', '.join(allowed)}; allow 'csc' or 'coo' in g.formats()",
    )


def sharing_with_parent(
    get_relation_graph: Callable[[HeteroGraphIndex, int], HeteroGraphIndex],
) -> Callable[[HeteroGraphIndex, int], HeteroGraphIndex]:
    """Wrap ``HeteroGraphIndex.get_relation_graph`` so that slices use their parent's entry."""

    @functools.wraps(get_relation_graph)
    def get_and_share(self: HeteroGraphIndex, etype: int) -> HeteroGraphIndex:
        relation = get_relation_graph(self, etype)
        if resident_relation(relation) is None:  # resident relations are shared as they are
            relation._cache[f"{_RELATION}0"] = entry(self, int(etype))
        return relation

    return get_and_share


# ---------------------------------------------------------------------- memory


def _entries(g: DGLGraph) -> list[Entry]:
    relations = vars(g._graph).get("relations")
    if relations is not None:
        return [relation.derived for relation in relations if relation.derived is not None]
    return [value for value in g._graph._cache.values() if isinstance(value, Entry)]


def _unions(g: DGLGraph) -> dict[Any, Union]:
    """Unions of relations, see :mod:`gnn_backend.adapters.dgl.hetero_conv`."""
    return {key: kept for key, kept in g._graph._cache.items() if isinstance(kept, Union)}


def cached_bytes(g: DGLGraph) -> int:
    """Bytes held for a DGLGraph and the relations cut from it.

    Arrays shared with DGL's own formats count too.
    """
    graphs = [cached.graph for cached in _entries(g)]
    held = sum(graph.nbytes() for graph in graphs if graph is not None)
    return held + sum(union.nbytes() for union in _unions(g).values())


def clear_cache(g: DGLGraph) -> None:
    """Drop what is held for a DGLGraph and its relations; it is built again when needed."""
    for cached in _entries(g):
        cached.graph = None
    for key in _unions(g):
        del g._graph._cache[key]

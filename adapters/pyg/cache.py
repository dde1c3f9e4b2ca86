"""Graphs of PyG's edge inputs, kept for as long as the user's own object lives.

The key is the identity of the object that the user passed, held weakly, as it was before any
self-loops were added. What it contained is checked on each use through its version counter
(every in-place edit raises it) and its memory layout, so an edited object gets a new graph, and
a freed one frees its graphs. Objects made in inference mode have no version counter: their
graphs are built and not kept.

Edits that bypass torch's version counter (through ``.data``, or through NumPy or another tensor
sharing the memory) cannot be seen; call :func:`clear_cache` after such an edit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters.pyg.edges import (
    Variant,
    build_graph,
    is_edge_list,
    is_untracked,
    stamp,
)
from gnn_backend.adapters.pyg.unions import unions
from gnn_backend.adapters.tensor_cache import type_orders
from gnn_backend.graph import Graph
from gnn_backend.graph.self_loops import with_self_loops

MAX_VARIANTS = 4


class _Entry:
    """Graphs of one edge object at one state of its content, least recently used first."""

    __slots__ = ("graphs", "lock", "stamp")

    def __init__(self) -> None:
        self.stamp: Any = None
        self.graphs: OrderedDict[Variant, Graph] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, edges: Any, variant: Variant) -> Graph:
        with self.lock:
            current = stamp(edges)
            if self.stamp != current:
                self.graphs.clear()
                self.stamp = current
            graph = self.graphs.get(variant)
            if graph is None:
                graph = self.graphs[variant] = self._made(edges, variant)
                self.stamp = stamp(edges)  # an EdgeIndex fills in its own sizes on the way
                if len(self.graphs) > MAX_VARIANTS:
                    self.graphs.popitem(last=False)
            else:
                self.graphs.move_to_end(variant)
            return graph

    def _made(self, edges: Any, variant: Variant) -> Graph:
        """Built, or made of the same edges' graph without self-loops of ours, which is faster."""
        plain = self.graphs.get(variant._replace(self_loops=False, fill_value=None))
        if plain is None or not variant.self_loops or type(edges) is not Tensor:
            return build_graph(edges, variant)
        if not is_edge_list(edges):
            return build_graph(edges, variant)
        # Tensors born in inference mode could not take part in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            return with_self_loops(plain)

    def held(self) -> list[Graph]:
        with self.lock:
            return list(self.graphs.values())


class GraphCache:
    """Weak map from edge objects to their graphs; safe to use from several threads.

    Two threads that need the same graph build it once; different graphs are built in parallel.
    """

    def __init__(self) -> None:
        self._entries = WeakTensorKeyDictionary()  # by identity; takes any weakly held object
        self._lock = threading.Lock()

    def get(self, edges: Any, variant: Variant) -> Graph:
        """Return the graph of ``edges``, built now if it is not kept.

        Raises
        ------
        InvalidArgument
            The edges do not fit the node counts.
        """
        if is_untracked(edges):
            return build_graph(edges, variant)
        with self._lock:
            entry = self._entries.get(edges)
            if entry is None:
                entry = self._entries[edges] = _Entry()
        return entry.get(edges, variant)

    def graphs(self) -> list[Graph]:
        """All graphs held now."""
        with self._lock:
            entries = list(self._entries.values())
        return [graph for entry in entries for graph in entry.held()]

    def nbytes(self) -> int:
        """Bytes held by all graphs, lazily built parts included."""
        return sum(graph.nbytes() for graph in self.graphs())

    def clear(self) -> None:
        """Forget all graphs."""
        with self._lock:
            self._entries = WeakTensorKeyDictionary()


_cache = GraphCache()


def graph_of(edges: Any, variant: Variant) -> Graph:
    """Return the cached or new graph of an edge input of PyG.

    Parameters
    ----------
    edges : Tensor [2, E], EdgeIndex, sparse COO or CSR Tensor, or SparseTensor
        As the user passed it to the layer. Sparse forms are transposed adjacencies
        [num_dst, num_src], as everywhere in PyG.
    variant : Variant

    Raises
    ------
    InvalidArgument
        The edges do not fit the node counts.
    """
    return _cache.get(edges, variant)


def cached_bytes() -> int:
    """Bytes that cached graphs of PyG inputs hold now."""
    return _cache.nbytes() + unions.nbytes() + type_orders.nbytes()


def clear_cache() -> None:
    """Drop all cached graphs of PyG inputs; they are built again when needed."""
    _cache.clear()
    unions.clear()
    type_orders.clear()

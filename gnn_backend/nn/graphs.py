"""The Graph of whatever a user calls a graph: a DGLGraph, an ``edge_index``, or a Graph."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph


def graph_of(graph: Any, num_src: int, num_dst: int) -> Graph:
    """Return the structure of a graph, built at its first use and kept with it.

    Parameters
    ----------
    graph : Graph, DGLGraph of one relation, or int32 or int64 Tensor [2, E]
        Edges run from sources, the first row, to destinations.
    num_src, num_dst : int
        Rows of the features.

    Raises
    ------
    InvalidArgument
        It is none of these, or does not fit the features.
    Unsupported
        A DGLGraph that has no Graph; ``reason`` says why.
    """
    found = _read(graph, num_src, num_dst)
    if (found.num_src, found.num_dst) != (num_src, num_dst):
        expected = f"{found.num_src} and {found.num_dst}, as the graph has nodes"
        raise invalid("x", "wrong number of rows", f"{num_src} and {num_dst}", expected)
    return found


def _read(graph: Any, num_src: int, num_dst: int) -> Graph:
    if isinstance(graph, Graph):
        return graph
    dgl = sys.modules.get("dgl")  # nobody has a DGLGraph who did not import it
    if dgl is not None and isinstance(graph, dgl.DGLGraph):
        from gnn_backend.adapters.dgl.graph import graph_of as of_dgl

        return of_dgl(graph)
    if isinstance(graph, Tensor):
        from gnn_backend.adapters.pyg.cache import graph_of as of_edges
        from gnn_backend.adapters.pyg.edges import Variant, is_edge_list, unsupported_form

        if is_edge_list(graph) and not unsupported_form(graph, reverse=False, self_loops=False):
            return of_edges(graph, Variant(num_src, num_dst, False))
    kinds = "a DGLGraph, an edge_index tensor [2, E] or a gnn_backend.graph.Graph"
    raise invalid("graph", "no graph", type(graph).__name__, kinds)

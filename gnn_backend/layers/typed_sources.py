"""Graphs whose sources are split by the type of the edge, so that each has a row for every type."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph


class TypedSources(NamedTuple):
    """A graph over the rows of a table [num_src, K, *], one of each source for each type.

    Attributes
    ----------
    graph : Graph
        Source j of an edge whose type is the k-th that occurs is number ``j * K + k``. Edges are
        numbered in ``by_dst`` order.
    types : list of int
        Those that occur, ascending; K of them.
    """

    graph: Graph
    types: list[int]


def by_edge_type(graph: Graph, types: Tensor, count: int) -> TypedSources:
    """Split the sources of a graph by the types of its edges.

    Kept with the graph, for the last ``types`` that were given, until they are changed or freed.

    Parameters
    ----------
    graph : Graph
    types : integer Tensor [E]
        In the caller's edge order.
    count : int
        How many types there are.

    Raises
    ------
    InvalidArgument
        A type is outside of 0 .. count - 1.
    """
    version = None if types.is_inference() else types._version
    kept = graph.plans.get("typed sources")
    if kept is not None and version is not None:
        of, seen, known, found = kept
        if of() is types and (seen, known) == (version, count):
            return found  # type: ignore[no-any-return]
    with torch.inference_mode(False), torch.no_grad():
        found = _split(graph, types, count)
    if version is not None:
        graph.plans["typed sources"] = (weakref.ref(types), version, count, found)
    return found


def _split(graph: Graph, types: Tensor, count: int) -> TypedSources:
    low, high = torch.stack(torch.aminmax(types)).tolist()
    if low < 0 or high >= count:
        raise invalid("etypes", "out of range", f"{low} to {high}", f"0 to {count - 1}")
    occurs = torch.zeros(count, dtype=torch.bool, device=types.device)
    occurs[types.long()] = True
    chosen = occurs.nonzero().flatten().tolist()
    places = occurs.cumsum(0) - 1
    csr = graph.by_dst
    ordered = types.long() if csr.edge_ids is None else types.long()[csr.edge_ids.long()]
    indices = csr.indices.long() * len(chosen) + places[ordered]
    return TypedSources(Graph.from_csr(csr.indptr, indices, graph.num_src * len(chosen)), chosen)

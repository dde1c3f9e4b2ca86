"""A graph's self-loops replaced by one for each node, made of its rows without sorting them."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph.build import expand_rows, index_dtype
from gnn_backend.graph.csr import CSR
from gnn_backend.graph.graph import Graph


def with_self_loops(graph: Graph) -> Graph:
    """The graph without its self-loops, and then one for each node that is at both ends.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    Graph
        Its edges are numbered as those that are left, in their order, and then the loops by node.
    """
    nodes = min(graph.num_src, graph.num_dst)
    csr = graph.by_dst
    rows = expand_rows(csr.indptr, graph.num_edges)
    left = csr.indices != rows
    number = left.cumsum(0)
    count = int(number[-1]) if graph.num_edges else 0
    dtype = index_dtype(count + nodes)
    first = torch.cat([number.new_zeros(1), number])[csr.indptr.long()]
    loops = torch.arange(graph.num_dst + 1, device=graph.device).clamp(max=nodes)
    indptr = first + loops
    ends = indptr[1 : nodes + 1] - 1  # a loop is the last of its row
    places = number - 1 + rows.clamp(max=nodes)
    ids = _renumbered(csr.edge_ids, left, number)
    if count < graph.num_edges:
        places, ids, kept = places[left], ids[left], csr.indices[left]
    else:
        kept = csr.indices
    indices = torch.empty(count + nodes, dtype=torch.int32, device=graph.device)
    edge_ids = torch.empty(count + nodes, dtype=dtype, device=graph.device)
    indices[places], edge_ids[places] = kept, ids.to(dtype)
    every = torch.arange(nodes, device=graph.device)
    indices[ends], edge_ids[ends] = every.int(), (every + count).to(dtype)
    return Graph(graph.num_src, graph.num_dst, CSR(indptr.to(dtype), indices, edge_ids), {})


def _renumbered(ids: Tensor | None, left: Tensor, number: Tensor) -> Tensor:
    """For each edge in CSR order how many of those left come before it in the caller's order."""
    if ids is None:
        return number - 1
    by_id = torch.empty_like(left)
    by_id[ids.long()] = left
    return (by_id.cumsum(0) - 1)[ids.long()]

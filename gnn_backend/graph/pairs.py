"""Pairs (node, edge type) that have an edge, and the edges of each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gnn_backend.graph.build import expand_rows, index_dtype
from gnn_backend.graph.csr import CSR
from gnn_backend.graph.grouping import group


@dataclass(frozen=True)
class Pairs:
    """Distinct pairs, sorted by (edge type, node).

    Attributes
    ----------
    nodes : int32 [U]
        Node of each.
    type_ptr : int32 [T + 1]
        Where the pairs of each edge type start, and the last ones end.
    lengths : tuple of int
        Pairs of each type.
    indptr : int32 [U + 1]
        Where the edges of each pair start in ``order``, and the last ones end.
    order : int32 [E]
        The caller's edges, pair after pair.
    """

    nodes: Tensor
    type_ptr: Tensor
    lengths: tuple[int, ...]
    indptr: Tensor
    order: Tensor

    def __len__(self) -> int:
        return self.nodes.numel()


def find_pairs(csr: CSR, edge_types: Tensor | None, num_types: int) -> Pairs:
    """Pairs of the rows of a CSR with the types of their edges; one device-to-host copy.

    Rows stand in ascending order there, so that one stable sort by type gives both orders.

    Parameters
    ----------
    csr : CSR
        Rows by number, not in another order.
    edge_types : int32 [E] or None
        In the caller's order; None: all are 0, the only type.
    num_types : int
    """
    ids, num_edges, device = csr.edge_ids, csr.indices.numel(), csr.indices.device
    dtype = index_dtype(num_edges)
    nodes = expand_rows(csr.indptr, num_edges)
    order = torch.arange(num_edges, dtype=dtype, device=device) if ids is None else ids
    first = torch.ones(num_edges, dtype=torch.bool, device=device)
    if edge_types is None:
        by_type = torch.arange(2, dtype=dtype, device=device) * num_edges
    else:
        by_type, place = group(edge_types if ids is None else edge_types[ids.long()], num_types)
        nodes, order = nodes[place.long()], order[place.long()]
    torch.ne(nodes[1:], nodes[:-1], out=first[1:])
    # A node whose edges of one type are the last and those of the next the first of theirs.
    starts = torch.cat([first, first.new_ones(1)])
    first = starts.index_fill_(0, by_type.long(), True)[:-1]
    number = first.cumsum(0, dtype=dtype)
    type_ptr = torch.nn.functional.pad(number, (1, 0))[by_type.long()]
    ends = type_ptr.tolist()
    count = torch.arange(1, ends[-1] + 1, dtype=dtype, device=device)
    begin = torch.searchsorted(number, count, out_int32=dtype == torch.int32)
    indptr = torch.nn.functional.pad(begin, (0, 1), value=num_edges)
    lengths = tuple(b - a for a, b in pairwise(ends))
    return Pairs(nodes[begin.long()], type_ptr, lengths, indptr, order)

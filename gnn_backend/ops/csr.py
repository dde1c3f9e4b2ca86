"""Products, sums and masks of weighted adjacency matrices, through torch; without autograd.

The matrix of a graph has a row for each source, a column for each destination and, at (i, j), the
weight of the edge i -> j; weights of parallel edges add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix in compressed rows, with ascending columns and no place twice.

    Attributes
    ----------
    num_rows, num_cols : int
    indptr : int64 [num_rows + 1]
    indices : int64 [nonzeros]
    weights : Tensor [nonzeros]
        A zero is kept where the operands have entries.
    """

    num_rows: int
    num_cols: int
    indptr: Tensor
    indices: Tensor
    weights: Tensor


def csrmm(left: Graph, left_weights: Tensor, right: Graph, right_weights: Tensor) -> SparseMatrix:
    """Product of two matrices.

    Parameters
    ----------
    left, right : Graph
        The destinations of ``left`` are the sources of ``right``.
    left_weights, right_weights : Tensor [num_edges]
        In the caller's edge order.

    Returns
    -------
    SparseMatrix

    Raises
    ------
    InvalidArgument
        Shapes or devices do not fit.
    """
    if left.num_dst != right.num_src:
        raise invalid("right", "does not fit left", f"{right.num_src} sources", left.num_dst)
    product = torch.sparse.mm(_coo(left, left_weights), _coo(right, right_weights))
    return _compressed(product)


def csrsum(graphs: Sequence[Graph], weights: Sequence[Tensor]) -> SparseMatrix:
    """Sum of matrices of one shape.

    Parameters
    ----------
    graphs : sequence of Graph
    weights : sequence of Tensor [num_edges]
        In the callers' edge orders.

    Returns
    -------
    SparseMatrix

    Raises
    ------
    InvalidArgument
        No matrix is given, or shapes or devices do not fit.
    """
    if not graphs or len(graphs) != len(weights):
        raise invalid("graphs", "wrong number", f"{len(graphs)} with {len(weights)} weights",
                      "as many weights as graphs, one or more")  # fmt: skip
    shapes = {(g.num_src, g.num_dst) for g in graphs}
    if len(shapes) > 1:
        raise invalid("graphs", "different node counts", sorted(shapes), "one shape")
    parts = [_coo(graph, weight) for graph, weight in zip(graphs, weights, strict=True)]
    places = torch.cat([part._indices() for part in parts], 1)
    values = torch.cat([part._values() for part in parts])
    return _compressed(
        torch.sparse_coo_tensor(places, values, parts[0].shape, check_invariants=False)
    )


def csrmask(graph: Graph, weights: Tensor, mask: Graph) -> Tensor:
    """Weights of a graph at the edges of another.

    Parameters
    ----------
    graph, mask : Graph
        Of one shape.
    weights : Tensor [graph.num_edges]
        In the caller's edge order.

    Returns
    -------
    Tensor [mask.num_edges]
        In the edge order of ``mask``; 0 where ``graph`` has no edge; of parallel edges the first.

    Raises
    ------
    InvalidArgument
        Shapes or devices do not fit.
    """
    _check_weights(graph, weights)
    shape = (graph.num_src, graph.num_dst)
    if shape != (mask.num_src, mask.num_dst):
        raise invalid("mask", "different node counts", (mask.num_src, mask.num_dst), shape)
    if graph.num_edges == 0:
        return weights.new_zeros(mask.num_edges)
    keys, order = torch.sort(_places(graph), stable=True)
    wanted = _places(mask)
    found = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
    return torch.where(keys[found] == wanted, weights[order[found]], 0)


def _ends(graph: Graph) -> Tensor:
    """Source and destination of every edge in the caller's order, int64 [2, E]."""
    csr = graph.by_dst
    ends = torch.stack([csr.indices, expand_rows(csr.indptr, graph.num_edges)]).long()
    if csr.edge_ids is None:
        return ends
    return torch.empty_like(ends).index_copy_(1, csr.edge_ids.long(), ends)


def _places(graph: Graph) -> Tensor:
    source, destination = _ends(graph)
    return source * max(1, graph.num_dst) + destination


def _check_weights(graph: Graph, weights: Tensor) -> None:
    if tuple(weights.shape) != (graph.num_edges,):
        raise invalid("weights", "wrong shape", tuple(weights.shape), (graph.num_edges,))
    if weights.device != graph.device:
        raise invalid("weights", "not on the graph's device", weights.device, graph.device)


def _coo(graph: Graph, weights: Tensor) -> Tensor:
    _check_weights(graph, weights)
    return torch.sparse_coo_tensor(_ends(graph), weights, (graph.num_src, graph.num_dst),
                                   check_invariants=False)  # fmt: skip


def _compressed(matrix: Tensor) -> SparseMatrix:
    matrix = matrix.coalesce()
    rows, columns = matrix.indices()
    bounds = torch.arange(matrix.shape[0] + 1, device=rows.device)
    indptr = torch.searchsorted(rows.contiguous(), bounds)
    num_rows, num_cols = matrix.shape
    values = matrix.values()
    return SparseMatrix(num_rows, num_cols, indptr, columns.contiguous(), values)

"""Generalised sparse-dense products: messages on edges, reduced at one end, never stored."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.broadcast import Pattern, broadcast
from gnn_backend.ops.operands import (
    as_operands,
    check_same_dtype,
    check_table,
    choice,
    trailing,
)
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.sparse.rows import rows_of
from gnn_backend.runtime.sparse.spmm import Result, spmm

OPERATORS = ("add", "sub", "mul", "div", "copy_lhs", "copy_rhs")
REDUCTIONS = ("sum", "mean", "max", "min")


def gspmm(
    graph: Graph,
    op: str,
    reduce: str,
    u: Tensor | None,
    e: Tensor | None,
    *,
    reverse: bool = False,
    arguments: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    r"""Generalised SpMM, without autograd.

    .. math:: y_i = \mathrm{reduce}_{e = (j \to i)} \; \mathrm{op}(u_j, e_e)

    Parameters
    ----------
    graph : Graph
    op : {"add", "sub", "mul", "div", "copy_lhs", "copy_rhs"}
        ``copy_lhs`` ignores ``e``, ``copy_rhs`` ignores ``u``.
    reduce : {"sum", "mean", "max", "min"}
    u : Tensor [num_src, *]
        Trailing dimensions broadcast against those of ``e``, by NumPy's rules.
    e : Tensor [num_edges, *]
        In the caller's edge order.
    reverse : bool
        Edges run the other way: ``u`` is [num_dst, *], the result has a row for each source.
    arguments : bool
        Whether max and min also give what won.

    Returns
    -------
    out : Tensor [num_dst, *]
        In the dtype of the operands; sums are taken in float32, of float64 in float64.
    arg_u : int32 [num_dst, *] or None
        Of max and min, unless ``u`` is unused: the source that won.
    arg_e : int32 (int64 from 2^31 edges on) [num_dst, *] or None
        Of max and min, unless ``e`` is unused: the edge that won.

    Raises
    ------
    InvalidArgument
        Names, shapes, dtypes or devices do not fit.
    Unsupported
        No kernel for this device or dtype.

    Notes
    -----
    Among equal messages the first edge of the row wins: the first in the caller's order, or as
    the rows given to ``Graph.from_csr`` have them; with ``reverse`` in the order of destinations
    first. A NaN never wins against a
    number. Where nothing is above -inf (below +inf for min) the result is that infinity and the
    arguments are 0: rows without edges, and rows of nothing but infinities or NaN. A graph
    without edges gives zeros. Rows without edges are 0 for sum and mean. Equal inputs give equal
    bits.
    """
    choice("op", op, OPERATORS)
    choice("reduce", reduce, REDUCTIONS)
    sources = graph.num_dst if reverse else graph.num_src
    left = None if op == "copy_rhs" else check_table("u", u, sources, graph.device)
    right = None if op == "copy_lhs" else check_table("e", e, graph.num_edges, graph.device)
    check_same_dtype(left, right, "u, e")
    result, pattern = _reduce(graph, op, reduce, left, right, reverse, arguments)
    shape = (result.out.shape[0], *pattern.shape)
    args = (None if a is None else a.view(shape) for a in (result.arg_source, result.arg_edge))
    return (result.out.view(shape), *args)  # type: ignore[return-value]


def _reduce(
    graph: Graph,
    op: str,
    reduce: str,
    left: Tensor | None,
    right: Tensor | None,
    reverse: bool,
    arguments: bool,
) -> tuple[Result, Pattern]:
    pattern = broadcast(trailing(left), trailing(right))
    arguments = arguments and reduce in ("max", "min")
    first = left if left is not None else right
    assert first is not None
    engine = sparse_engine(first.device, first.dtype)
    lhs, rhs = as_operands(pattern, left, right)
    row_bytes = max(lhs.row_bytes, rhs.row_bytes)
    rows = rows_of(graph, "src" if reverse else "dst", row_bytes)
    if rows.num_rows * pattern.width * graph.num_edges == 0:
        return _zeros(first, rows.num_rows, pattern, op, arguments, rows.edge_dtype), pattern
    dim = pattern.dim
    return spmm(engine, rows, op, reduce, lhs, rhs, pattern.width, dim, arguments), pattern


def _zeros(
    like: Tensor,
    rows: int,
    pattern: Pattern,
    op: str,
    arguments: bool,
    edge_dtype: torch.dtype,
) -> Result:
    shape = (rows, pattern.width)
    source = like.new_zeros(shape, dtype=torch.int32) if op != "copy_rhs" else None
    edge = like.new_zeros(shape, dtype=edge_dtype) if op != "copy_lhs" else None
    out = like.new_zeros(shape)
    return Result(out, source, edge) if arguments else Result(out)

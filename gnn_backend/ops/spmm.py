"""Generalised sparse-dense products: messages on edges, reduced at one end, never stored."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.attention import kernel_ready
from gnn_backend.ops.broadcast import broadcast
from gnn_backend.ops.operands import (
    as_operands,
    check_row_bytes,
    check_same_dtype,
    check_table,
    choice,
    ready,
    row_bytes,
    trailing,
)
from gnn_backend.runtime.aggregation import Message
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.sparse import linear_aggregation
from gnn_backend.runtime.sparse.rows import rows_of
from gnn_backend.runtime.sparse.spmm import Operand, Plan, Result

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
    first = left if left is not None else right
    assert first is not None
    engine = sparse_engine(first.device, first.dtype)
    if left is not None and _is_linear(op, reduce, left, right) and graph.num_edges:
        return _summed(engine, graph, reduce, left, right, reverse), None, None
    arguments = arguments and reduce in ("max", "min")
    tails = (trailing(left), trailing(right))
    key = ("spmm", op, reduce, reverse, arguments, first.dtype, *tails)
    found = graph.plans.get(key)
    if found is None:
        found = graph.plans[key] = _plan(graph, op, reduce, left, right, reverse, arguments)
    plan, shape = found
    if isinstance(plan, Plan):
        result = plan.run(engine, ready(left), ready(right))
    else:
        result = _zeros(first, shape, op, arguments, plan)
    out, source, edge = result
    source = None if source is None else source.view(shape)
    return out.view(shape), source, None if edge is None else edge.view(shape)


def _is_linear(op: str, reduce: str, left: Tensor, right: Tensor | None) -> bool:
    """Whether it is a sum or mean of rows, or of rows times one weight an edge."""
    if reduce not in ("sum", "mean") or not left.numel():
        return False
    alone = right is not None and math.prod(right.shape[1:]) == 1 and right.dim() <= left.dim()
    return op == "copy_lhs" or (op == "mul" and alone)


def _summed(
    engine: DeviceEngine, graph: Graph, reduce: str, left: Tensor, right: Tensor | None,
    reverse: bool,
) -> Tensor:  # fmt: skip
    """The same by the path that is chosen for such sums."""
    table = kernel_ready(left).view(left.shape[0], 1, -1)
    check_row_bytes(Operand("row", row_bytes(left)))
    edge = None if right is None else kernel_ready(right).view(-1)
    message = Message("copy" if edge is None else "mul", table, edge)
    out = linear_aggregation.reduced(engine, graph, "src" if reverse else "dst", reduce, message)
    return out.view(-1, *left.shape[1:])


def _plan(
    graph: Graph, op: str, reduce: str, left: Tensor | None, right: Tensor | None, reverse: bool,
    arguments: bool,
) -> tuple[Plan | torch.dtype, tuple[int, ...]]:  # fmt: skip
    """The launches, or the type of edge ids where there are none; and the shape of the result."""
    pattern = broadcast(trailing(left), trailing(right))
    lhs, rhs = as_operands(pattern, left, right)
    rows = rows_of(graph, "src" if reverse else "dst", max(lhs.row_bytes, rhs.row_bytes))
    shape = (rows.num_rows, *pattern.shape)
    if rows.num_rows * pattern.width * graph.num_edges == 0:
        return rows.edge_dtype, shape
    dtype = (left if left is not None else right).dtype  # type: ignore[union-attr]
    width, dim = pattern.width, pattern.dim
    return Plan(rows, op, reduce, dtype, lhs, rhs, width, dim, arguments), shape


def _zeros(
    like: Tensor, shape: tuple[int, ...], op: str, arguments: bool, edge_dtype: torch.dtype
) -> Result:
    source = like.new_zeros(shape, dtype=torch.int32) if op != "copy_rhs" else None
    edge = like.new_zeros(shape, dtype=edge_dtype) if op != "copy_lhs" else None
    out = like.new_zeros(shape)
    return Result(out, source, edge) if arguments else Result(out)

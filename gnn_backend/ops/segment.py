"""Reductions over consecutive segments, and sums scattered by an index; without autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument, invalid
from gnn_backend.graph.build import group_cuda
from gnn_backend.ops.broadcast import broadcast
from gnn_backend.ops.operands import as_operands, check_table, choice, ready, row_bytes
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.sparse.rows import Rows, rows_between
from gnn_backend.runtime.sparse.spmm import Plan, Result

REDUCTIONS = ("sum", "mean", "max", "min")
_INTEGERS = (torch.int32, torch.int64)


def segment_reduce(op: str, x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor | None]:
    r"""Reduce consecutive rows.

    .. math:: y_i = \mathrm{op}_{j = o_i}^{o_{i+1} - 1} x_j

    Parameters
    ----------
    op : {"sum", "mean", "max", "min"}
    x : Tensor [N, *]
    offsets : int32 or int64 [segments + 1]
        Ascending, within 0 to N. Reading their sizes waits for the device.

    Returns
    -------
    out : Tensor [segments, *]
        In the dtype of ``x``; sums are taken in float32, of float64 in float64. Segments without
        rows are 0, for max -inf, for min +inf. Equal inputs give equal bits.
    arg : Tensor [segments, *] or None
        Of max and min, in the dtype of ``offsets``: the row of ``x`` that won, the first among
        equals; -1 where nothing is above -inf (below +inf). A NaN never wins.

    Raises
    ------
    InvalidArgument
        Names, shapes, dtypes or devices do not fit.
    Unsupported
        No kernel for this device or dtype.
    """
    choice("op", op, REDUCTIONS)
    check_table("x", x, len(x) if x.dim() else 1, offsets.device)
    _check_integers("offsets", offsets)
    if offsets.numel() == 0:
        raise invalid("offsets", "empty", 0, "segments + 1 values")
    sparse_engine(x.device, x.dtype)  # refuses before anything waits for the device
    rows = rows_between(offsets, x.shape[0], row_bytes(x))
    result = reduce_rows(rows, op, x)
    shape = (rows.num_rows, *x.shape[1:])
    arg = None if result.arg_edge is None else result.arg_edge.to(offsets.dtype).view(shape)
    return result.out.view(shape), arg


def segment_reduce_backward(grad: Tensor, arg: Tensor, num_rows: int) -> Tensor:
    """Gradient of a max or min over segments towards its input.

    Parameters
    ----------
    grad : Tensor [segments, *]
    arg : int32 or int64 [segments, *]
        What :func:`segment_reduce` gave: the rows that won, or -1.
    num_rows : int
        Rows of the input.

    Returns
    -------
    Tensor [num_rows, *]
        ``grad`` where a row won, else 0. Any device; a row wins once, so no order matters.
    """
    if arg.shape != grad.shape:
        raise invalid("arg", "wrong shape", tuple(arg.shape), tuple(grad.shape))
    # One row more, for what nobody won.
    index = torch.where(arg < 0, num_rows, arg.long())
    out = grad.new_zeros(num_rows + 1, *grad.shape[1:])
    return out.scatter_(0, index, grad)[:num_rows]


def scatter_add(x: Tensor, index: Tensor, num_rows: int) -> Tensor:
    r"""Sum rows with equal index.

    .. math:: y_i = \sum_{j \,:\, \mathrm{index}_j = i} x_j

    Parameters
    ----------
    x : Tensor [N, *]
    index : int32 or int64 [N]
        Within 0 to ``num_rows`` - 1. Checking it waits for the device.
    num_rows : int

    Returns
    -------
    Tensor [num_rows, *]
        Summed in the order of the input (float32; float64 in float64), without atomics: equal
        inputs give equal bits.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit, or an index is out of range.
    Unsupported
        No kernel for this device or dtype.
    """
    check_table("x", x, len(index) if index.dim() == 1 else -1, index.device)
    _check_integers("index", index)
    sparse_engine(x.device, x.dtype)
    indptr, _, order = group_cuda(index, index, num_rows)
    rows = _rows_by(index, indptr, order, row_bytes(x))
    return reduce_rows(rows, "sum", x).out.view(num_rows, *x.shape[1:])


def _rows_by(index: Tensor, indptr: Tensor, order: Tensor, row_bytes: int) -> Rows:
    """Rows of entries with equal index; entries out of range are outside the bounds of all."""
    try:
        return rows_between(indptr, index.numel(), row_bytes, order)
    except InvalidArgument:
        low, high = (int(end) for end in torch.aminmax(index))
        expected = f"0 to {indptr.numel() - 2}"
        raise invalid("index", "out of range", f"{low} to {high}", expected) from None


def _check_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _INTEGERS or tensor.dim() != 1:
        got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise invalid(name, "wrong dtype or shape", got, "int32 or int64, one dimension")


def reduce_rows(rows: Rows, op: str, x: Tensor) -> Result:
    """Reduce the entries of every row.

    Parameters
    ----------
    rows : Rows
    op : {"sum", "mean", "max", "min"}
    x : Tensor [num_edges, *]

    Returns
    -------
    Result
        ``out`` [rows, width], and of max and min ``arg_edge`` [rows, width], -1 where nothing won;
        rows of padding are left out.

    Raises
    ------
    Unsupported
        No kernel for this device or dtype.
    """
    pattern = broadcast(None, tuple(x.shape[1:]))
    arguments = op in ("max", "min")
    count = rows.num_rows - rows.padding
    if count * pattern.width == 0:
        shape = (count, pattern.width)
        return Result(x.new_empty(shape), None, x.new_empty(shape, dtype=rows.edge_dtype)
                      if arguments else None)  # fmt: skip
    engine = sparse_engine(x.device, x.dtype)
    lhs, rhs = as_operands(pattern, None, x)
    plan = Plan(rows, "copy_rhs", op, x.dtype, lhs, rhs, pattern.width, 1, arguments, nothing=-1)
    result = plan.run(engine, None, ready(x))
    if not rows.padding:
        return result
    return Result(*(None if part is None else part[:count] for part in result))  # type: ignore[arg-type]

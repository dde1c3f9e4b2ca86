"""Reductions over segments of consecutive rows, and addition of rows by an index."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.ops.reference.broadcast import accumulator
from gnn_backend.ops.reference.spmm import extreme


def segment_reduce(op: str, feat: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor | None]:
    """Reduce rows ``offsets[s] .. offsets[s + 1]`` to row s.

    Parameters
    ----------
    op : {"sum", "max", "min"}
    feat : Tensor [N, *]
    offsets : integer [S + 1]

    Returns
    -------
    Tensor [S, *]
        An empty segment has 0, or -inf for max and inf for min.
    Tensor [S, *] or None
        For max and min: the first row that won, in the dtype of ``offsets``; -1 where nothing is
        above -inf (below inf for min). A NaN never wins.
    """
    if op not in ("sum", "max", "min"):
        raise invalid("op", "unknown reduction", repr(op), "sum, max or min")
    count = offsets.numel() - 1
    lengths = offsets.to(feat.device).diff().long()
    segments = torch.repeat_interleave(torch.arange(count, device=feat.device), lengths)
    shape = (count, *feat.shape[1:])
    rows = feat[: segments.numel()]
    if op == "sum":
        wide = accumulator(feat.dtype)
        out = torch.zeros(shape, dtype=wide, device=feat.device)
        return out.index_add_(0, segments, rows.to(wide)).to(feat.dtype), None
    if rows.numel() == 0:
        none = float("-inf") if op == "max" else float("inf")
        out = torch.full(shape, none, dtype=feat.dtype, device=feat.device)
        return out, torch.full(shape, -1, dtype=offsets.dtype, device=feat.device)
    out, won, found = extreme(rows, segments, shape, op)
    return out, torch.where(found, won, -1).to(offsets.dtype)


def segment_reduce_backward(grad: Tensor, arg: Tensor, num_rows: int) -> Tensor:
    """Put the gradient [S, *] of each winner into its row of [num_rows, *]; -1 wins nothing."""
    out = torch.zeros((num_rows, *grad.shape[1:]), dtype=grad.dtype, device=grad.device)
    if num_rows == 0 or grad.numel() == 0:
        return out
    index = arg.long()
    return out.scatter_add_(0, index.clamp(min=0), torch.where(index >= 0, grad, 0))


def scatter_add(x: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """Add row i of ``x`` [N, *] to row ``index[i]`` of the result [num_rows, *]."""
    wide = accumulator(x.dtype)
    out = torch.zeros((num_rows, *x.shape[1:]), dtype=wide, device=x.device)
    return out.index_add_(0, index.long(), x.to(wide)).to(x.dtype)

"""Typed linear by one product of torch a type: for the CPU, and dtypes without kernels.

Rows are gathered a block at a time, so that no copy of all of them is ever made. Values of 16 bits
are multiplied and added as float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

BLOCK_VALUES = 1 << 20  # of the rows that are gathered at once


def linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    lengths: Sequence[int],
    rows: Tensor | None,
    out_rows: Tensor | None,
    scale: Tensor | None,
) -> None:
    """Write ``out[out_rows[i]] = scale[i] * x[rows[i]] @ weight[type of i]``.

    Parameters
    ----------
    x : Tensor [N, H, I]
    weight : Tensor [T, H or 1, I, O]
    out : Tensor [M, H, O]
    lengths : sequence of int [T]
        Places of each type.
    rows, out_rows : integer Tensors [places] or None
    scale : Tensor [places] or None
    """
    kind = _arithmetic(x.dtype)
    for matrix, begin, end in _blocks(lengths, x.shape[1:].numel()):
        part = _rows(x, rows, begin, end).to(kind)
        if weight.shape[1] == 1:
            product = torch.matmul(part, weight[matrix, 0].to(kind))
        else:
            product = torch.bmm(part.transpose(0, 1), weight[matrix].to(kind)).transpose(0, 1)
        if scale is not None:
            product = product * scale[begin:end, None, None].to(kind)
        if out_rows is None:
            out[begin:end] = product
        else:
            out.index_copy_(0, out_rows[begin:end].long(), product.to(out.dtype))


def weight_grad(
    x: Tensor,
    grad: Tensor,
    lengths: Sequence[int],
    x_rows: Tensor | None,
    grad_rows: Tensor | None,
    scale: Tensor | None,
    each: bool,
) -> Tensor:
    """Sum of ``scale[i] * outer(x[x_rows[i]], grad[grad_rows[i]])`` over the places of each type.

    ``x`` [N, H, I] and ``grad`` [M, H, O] give [T, H, I, O] with ``each``, else [T, 1, I, O].
    """
    kind = _arithmetic(x.dtype)
    heads = x.shape[1] if each else 1
    out = x.new_zeros(len(lengths), heads, x.shape[2], grad.shape[2], dtype=kind)
    for matrix, begin, end in _blocks(lengths, x.shape[1:].numel() + grad.shape[1:].numel()):
        left = _rows(x, x_rows, begin, end).to(kind)
        right = _rows(grad, grad_rows, begin, end).to(kind)
        if scale is not None:
            left = left * scale[begin:end, None, None].to(kind)
        if each:
            left, right = left.transpose(0, 1), right.transpose(0, 1)
        else:
            left, right = left.reshape(1, -1, x.shape[2]), right.reshape(1, -1, grad.shape[2])
        out[matrix].baddbmm_(left.transpose(1, 2), right)
    return out.to(x.dtype)


def _arithmetic(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _rows(table: Tensor, index: Tensor | None, begin: int, end: int) -> Tensor:
    return table[begin:end] if index is None else table.index_select(0, index[begin:end])


def _blocks(lengths: Sequence[int], row_values: int) -> Iterator[tuple[int, int, int]]:
    """Type, begin and end of pieces of the types' places."""
    size = max(1, BLOCK_VALUES // max(1, row_values))
    ends = list(itertools.accumulate(lengths, initial=0))
    for matrix, (begin, end) in enumerate(itertools.pairwise(ends)):
        for at in range(begin, end, size):
            yield matrix, at, min(at + size, end)

"""Linear maps of rows by their type, and of several tables at once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from gnn_backend.errors import invalid
from gnn_backend.graph.grouping import bounds, group
from gnn_backend.layers.hetero.products import segment_sums, stacked, typed_rows
from gnn_backend.ops.typed_linear import Bounds, has_kernels


class TypeOrder(NamedTuple):
    """Rows by their type.

    Attributes
    ----------
    types : int32 Tensor [N]
    order : int32 Tensor [N] or None
        Rows, those of one type after those of another; None: they lie so.
    bounds : Bounds
        Of the types in that order.
    """

    types: Tensor
    order: Tensor | None
    bounds: Bounds

    def nbytes(self) -> int:
        """Bytes held."""
        tensors = (self.types, self.order, self.bounds.ptr)
        return sum(t.nbytes for t in tensors if t is not None)


def order_of(types: Tensor, num_types: int) -> TypeOrder:
    """Find where each type's rows are; waits for the device once.

    Parameters
    ----------
    types : int32 or int64 Tensor [N]
        N is not 0.
    num_types : int

    Raises
    ------
    InvalidArgument
        A type is out of range.
    """
    with torch.inference_mode(False), torch.no_grad():
        falls = (types[1:] < types[:-1]).any() if len(types) > 1 else types.new_zeros(())
        least, most = types.aminmax()
        least, most, falling = torch.stack((least, most, falls.to(types.dtype))).tolist()
        if least < 0 or most >= num_types:
            raise invalid("types", "out of range", f"{least} to {most}", f"0 to {num_types - 1}")
        # A copy, as the caller may change his own in place.
        narrow = types.to(torch.int32, copy=True)
        if falling:
            ptr, order = group(narrow, num_types)
        else:
            ptr, order = bounds(narrow, num_types), None
        # Without kernels each type is a product of its own, for which its size must be known.
        lengths = tuple(ptr.diff().tolist()) if ptr.device.type == "cpu" else None
        return TypeOrder(narrow, order, Bounds(ptr, lengths))


def segments(lengths: Sequence[int], device: torch.device) -> TypeOrder:
    """Rows in segments of these lengths, as rows of as many types."""
    with torch.inference_mode(False), torch.no_grad():
        ptr = _bounds_of(tuple(lengths), device)
        types = torch.repeat_interleave(ptr.diff(), output_size=sum(lengths)).int()
    return TypeOrder(types, None, Bounds(ptr, tuple(lengths)))


@functools.lru_cache(maxsize=256)
def _bounds_of(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Bounds of segments; a step need not copy them to the device again."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int64).to(device)


def linear_by_type(x: Tensor, weight: Tensor, bias: Tensor | None, rows: TypeOrder) -> Tensor:
    r"""Rows times the matrix of their type, plus its bias: :math:`y_i = x_i W_{t_i} + b_{t_i}`.

    Parameters
    ----------
    x : Tensor [N, I], or [N, B, I] by blocks
    weight : Tensor [T, I, O], or [T, B, I, O]
    bias : Tensor [T, O], optional
        Of rows that have no blocks.
    rows : TypeOrder

    Returns
    -------
    Tensor [N, O] or [N, B, O]
    """
    out = typed_rows(x, weight, rows.bounds, rows.order)
    if bias is None:
        return out
    if len(bias) == 1:
        return out + bias
    found: Tensor = _Biased.apply(out, bias, rows)
    return found


def linear_of_tables(
    tables: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor] | None
) -> list[Tensor]:
    """Each table times a matrix of its own, plus its bias; one product for tables of one width.

    Where each type would be a product of torch, so is each table, of which no copy is made then.

    Parameters
    ----------
    tables : sequence of Tensor [N, I]
    weights : sequence of Tensor [O, I]
        As linear modules have them.
    biases : sequence of Tensor [O], optional

    Returns
    -------
    list of Tensor [N, O]
    """
    given: Sequence[Tensor | None] = biases or [None] * len(tables)
    if not has_kernels(tables[0]):
        return [linear(x, w, b) for x, w, b in zip(tables, weights, given, strict=True)]
    found: list[Tensor | None] = [None] * len(tables)
    for group_ in by_width(tables):
        rows = segments([len(tables[i]) for i in group_], tables[0].device)
        weight = stacked([weights[i] for i in group_], transposed=True)
        bias = None if biases is None else stacked([biases[i] for i in group_])
        x = joined([tables[i] for i in group_])
        out = linear_by_type(x, weight, bias, rows)
        for i, part in zip(group_, out.split([len(tables[i]) for i in group_]), strict=True):
            found[i] = part
    return [part for part in found if part is not None]


def by_width(tables: Sequence[Tensor]) -> list[list[int]]:
    """Numbers of the tables of each width."""
    groups: dict[int, list[int]] = {}
    for i, table in enumerate(tables):
        groups.setdefault(table.shape[1], []).append(i)
    return list(groups.values())


def joined(tables: Sequence[Tensor]) -> Tensor:
    """Tables one after the other."""
    return tables[0] if len(tables) == 1 else torch.cat(list(tables))


class _Biased(torch.autograd.Function):
    """The bias's gradient is summed in a fixed order, as a typed product of ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, rows: TypeOrder) -> Tensor:
        ctx.rows = rows
        return x + bias.index_select(0, rows.types)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_bias = None
        if ctx.needs_input_grad[1]:
            to_bias = segment_sums(grad, ctx.rows.bounds, ctx.rows.order)
        return grad, to_bias, None

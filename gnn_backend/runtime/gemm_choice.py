"""Which way a typed linear goes: our kernels, one product of torch, or its grouped product."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

Way = Literal["mm", "kernel", "grouped", "segments"]

#: Where torch's grouped product of a dtype was measured to be faster than ours, of rows that lie in
#: order: (dtype, compute capability). ``bench gemm`` measures both.
GROUPED_IS_FASTER: frozenset[tuple[torch.dtype, tuple[int, int]]] = frozenset()
#: What torch's grouped product takes at all.
_GROUPED_DTYPE, _GROUPED_CAPABILITY = torch.bfloat16, (9, 0)
_GROUPED_ALIGNMENT = 8  # values; rows start at multiples of 16 bytes


class Product(NamedTuple):
    """What decides.

    Attributes
    ----------
    dtype : torch.dtype
    types : int
        Weights.
    inner, outer : int
        Columns of the rows and of the result.
    gathered : bool
        Rows are read, or results written, through an index.
    heads : bool
        Each head has a weight of its own.
    kernels : bool
        There are kernels for dtype and device.
    capability : (int, int), optional
        Of the GPU.
    """

    dtype: torch.dtype
    types: int
    inner: int
    outer: int
    gathered: bool
    heads: bool
    kernels: bool
    capability: tuple[int, int] | None = None


def out_of_order(dims: int, types: int, gathered: bool) -> bool:
    """Whether rows do not lie as torch's products take them, in order and in two dimensions.

    Parameters
    ----------
    dims : int
        Of the table of rows.
    types : int
        Weights.
    gathered : bool
        Rows are read, or results written, through an index.
    """
    return gathered or (dims > 2 and types > 1)


def can_group(product: Product) -> bool:
    """Whether torch's grouped product takes these operands."""
    return (
        product.dtype == _GROUPED_DTYPE
        and product.capability is not None
        and product.capability >= _GROUPED_CAPABILITY
        and hasattr(torch.nn.functional, "grouped_mm")
        and not product.gathered
        and not product.heads
        and product.inner % _GROUPED_ALIGNMENT == product.outer % _GROUPED_ALIGNMENT == 0
    )


def choose(product: Product) -> Way:
    """The way of a product.

    ``mm``: one product of torch for the only weight. ``kernel``: ours. ``grouped``: torch's grouped
    product. ``segments``: one product of torch a type, whose numbers of rows the host must know.
    """
    if product.types == 1 and not product.gathered and not product.heads:
        return "mm"
    if can_group(product) and (product.dtype, product.capability) in GROUPED_IS_FASTER:
        return "grouped"
    if product.kernels:
        return "kernel"
    return "grouped" if can_group(product) else "segments"

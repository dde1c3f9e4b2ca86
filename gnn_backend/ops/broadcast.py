"""Broadcasting of two operands' trailing shapes, reduced to how each column is read.

The rules are NumPy's on the shapes without their first dimension. What a kernel sees is a row of
``width`` columns and, for each operand, an access: the operand has every column (``row``), one
value for ``dim`` columns in a row (``head``), or values at given offsets (``table``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gnn_backend.errors import invalid

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Pattern:
    """How two operands broadcast.

    Attributes
    ----------
    shape : tuple of int
        Trailing shape of the result.
    accesses : (str, str)
        Of the left and the right operand: none, row, head or table.
    dim : int
        Columns that share a value of ``head`` access.
    """

    shape: Shape
    accesses: tuple[str, str]
    dim: int

    @property
    def width(self) -> int:
        """Columns of the result."""
        return math.prod(self.shape)


@lru_cache(maxsize=1024)
def broadcast(left: Shape | None, right: Shape | None) -> Pattern:
    """The pattern of two trailing shapes; None for an operand that is not used.

    Raises
    ------
    InvalidArgument
        The shapes do not broadcast.
    """
    if left is None or right is None:
        shape = (right if left is None else left) or ()
        accesses = ("none" if left is None else "row", "none" if right is None else "row")
        return Pattern(shape, accesses, 1)
    rank = max(len(left), len(right))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (left, right)]
    if any(a != b and 1 not in (a, b) for a, b in zip(*padded, strict=True)):
        raise invalid("operands", "trailing shapes do not broadcast", f"{left} and {right}",
                      "equal sizes, or 1, in every dimension from the last")  # fmt: skip
    shape = tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))
    kinds = [_access(own, shape) for own in padded]
    dim = max(dim for _, dim in kinds)
    return Pattern(shape, (kinds[0][0], kinds[1][0]), dim)


def _access(own: Shape, shape: Shape) -> tuple[str, int]:
    """Access of an operand and the columns a value, given shapes of one rank."""
    whole = [a == b for a, b in zip(own, shape, strict=True) if b != 1]
    if all(whole):
        return "row", 1
    first = whole.index(False)
    if any(whole[first:]):
        return "table", 1
    sizes = [size for size in shape if size != 1]
    return "head", math.prod(sizes[first:])


@lru_cache(maxsize=256)
def offsets(own: Shape, shape: Shape, device: torch.device) -> Tensor:
    """Where each column of ``shape`` is found in a row of trailing shape ``own``, int32 [width]."""
    places = torch.arange(math.prod(own), dtype=torch.int32).reshape(own)
    return places.expand(shape).reshape(-1).contiguous().to(device)

"""What an aggregation gives its engine, and what an engine's forward pass gives back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Message(NamedTuple):
    """What travels along each edge.

    Attributes
    ----------
    kind : {"copy", "mul", "add", "add_relu"}
        ``x``, ``x * edge``, ``x + edge``, ``relu(x + edge)``.
    x : Tensor [num_src, H, D], or [num_src, D] of one head
        Contiguous.
    edge : Tensor [E], [E, H] or one in the trailing shape of ``x``, or None
        Contiguous, in the caller's edge order; None for ``copy``.
    """

    kind: str
    x: Tensor
    edge: Tensor | None

    @property
    def tails(self) -> tuple[torch.Size, torch.Size | None]:
        """The trailing shapes of both."""
        return self.x.shape[1:], None if self.edge is None else self.edge.shape[1:]

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of a row, and columns of a head."""
        *heads, dim = self.x.shape[1:]
        return (heads[0], dim) if heads else (1, dim)


class Forward(NamedTuple):
    """Results of a forward pass.

    Attributes
    ----------
    values : dict of str to Tensor [num_dst, H, D], or [num_dst, D] as ``x`` has it
        By primitive. Sums in the accumulator's dtype (float32 for 16 bits), max and min in that
        of ``x``.
    saved : dict of str to Tensor
        What the same engine's backward wants.
    """

    values: dict[str, Tensor]
    saved: dict[str, Tensor]

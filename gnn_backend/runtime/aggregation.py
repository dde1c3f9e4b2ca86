"""What an aggregation gives its engine, and what an engine's forward pass gives back."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Message(NamedTuple):
    """What travels along each edge.

    Attributes
    ----------
    kind : {"copy", "mul", "add", "add_relu"}
        ``x``, ``x * edge``, ``x + edge``, ``relu(x + edge)``.
    x : Tensor [num_src, H, D]
        Contiguous.
    edge : Tensor [E], [E, H] or [E, H, D], or None
        Contiguous, in the caller's edge order; None for ``copy``.
    """

    kind: str
    x: Tensor
    edge: Tensor | None


class Forward(NamedTuple):
    """Results of a forward pass.

    Attributes
    ----------
    values : dict of str to Tensor [num_dst, H, D]
        By primitive. Sums in the accumulator's dtype (float32 for 16 bits), max and min in that
        of ``x``.
    saved : dict of str to Tensor
        What the same engine's backward wants.
    """

    values: dict[str, Tensor]
    saved: dict[str, Tensor]

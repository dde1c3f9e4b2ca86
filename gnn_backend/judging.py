"""How far two runs of a layer are from each other, and whether that is more than rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gnn_backend.verify import Run

_CANCELLED = 1e-2
CANCELLED = {torch.float16: 1e-1, torch.bfloat16: 1e-1}
"""Gradients below this share of the largest are judged by that share; a hundredth where the dtype
is not named. Times the tolerance it is about two units in the last place of the largest one."""

BRANCHED = {torch.float32: 1e-2, torch.float16: 1e-1, torch.bfloat16: 1.0}
"""Errors of a precision above it come of another sign or choice, and tell nothing of rounding."""

AS_NEAR = 3.0  # times stock's own distance from float64 that ours may have


def errors(stock: Run, ours: Run) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the absolute, relative and judged errors of outputs and gradients, by name.

    A gradient that one side lacks counts as zero; one that both lack is left out. Runs may
    differ in precision; the lower one decides what counts as cancelled.
    """
    absolute: dict[str, float] = {}
    relative: dict[str, float] = {}
    judged: dict[str, float] = {}
    for wanted, found in ((stock.outputs, ours.outputs), (stock.gradients, ours.gradients)):
        least = least_scale(wanted, found)  # type: ignore[arg-type]
        for name, expected in wanted.items():
            got = found[name]  # type: ignore[index]
            if expected is None and got is None:
                continue
            difference, scale = difference_and_scale(*none_as_zero(expected, got))
            worst = float(difference.max()) if difference.numel() else 0.0
            absolute[name] = worst
            relative[name], judged[name] = (_ratio(worst, s) for s in (scale, max(scale, least)))
    return absolute, relative, judged


def _ratio(worst: float, scale: float) -> float:
    return worst / scale if scale else (0.0 if worst == 0 else float("inf"))


def differing(
    judged: Mapping[str, float],
    rounding: Mapping[str, float],
    own_rounding: Mapping[str, float],
    tolerance: float,
    branched: float = BRANCHED[torch.float32],
) -> dict[str, float]:
    """The judged errors that neither the tolerance nor rounding accounts for.

    An error is rounding where our own distance from stock in float64 is within the tolerance, or
    of the size of that of stock itself.

    Parameters
    ----------
    judged, rounding, own_rounding : dict of str to float
        Of a :class:`Comparison`.
    tolerance : float
    branched : float
        Of the dtype, see ``BRANCHED``.

    Returns
    -------
    dict of str to float
        By tensor; empty if all is well.
    """

    def accounted(name: str) -> bool:
        theirs, own = rounding.get(name, float("inf")), own_rounding.get(name, float("inf"))
        return theirs <= branched and own <= max(tolerance, AS_NEAR * theirs)

    return {name: e for name, e in judged.items() if not (e <= tolerance or accounted(name))}


def least_scale(
    reference: Mapping[str, Tensor | None], found: Mapping[str, Tensor | None] | None = None
) -> float:
    """The size that every tensor is at least taken to have when an error is judged.

    A gradient that cancels to nothing holds rounding errors of the others' size. How much that
    is, the lowest precision among both sides decides.
    """
    given = [tensor for tensor in reference.values() if tensor is not None]
    both = [*given, *(t for t in (found or {}).values() if t is not None)]
    share = max((CANCELLED.get(t.dtype, _CANCELLED) for t in both), default=_CANCELLED)
    return share * max((largest(t) for t in given), default=0.0)


def difference_and_scale(expected: Tensor, got: Tensor) -> tuple[Tensor, float]:
    """Return |difference| in float64 and the largest finite |expected|.

    NaN against NaN and an infinity against the same infinity count as equal; against anything
    else they differ by infinity.
    """
    a = expected.detach().double()
    b = got.detach().to(a.device).double()
    difference = (a - b).abs()
    special = ~(torch.isfinite(a) & torch.isfinite(b))
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(special, torch.where(same, 0.0, torch.inf), difference)
    return difference, largest(expected)


def largest(tensor: Tensor) -> float:
    """Largest finite magnitude, 0 if there is none."""
    finite = tensor.detach()[torch.isfinite(tensor)].abs()
    return float(finite.max()) if finite.numel() else 0.0


def none_as_zero(a: Tensor | None, b: Tensor | None) -> tuple[Tensor, Tensor]:
    """Replace a gradient that is missing on one side by zeros."""
    if a is None:
        assert b is not None
        return torch.zeros_like(b), b
    return a, torch.zeros_like(a) if b is None else b

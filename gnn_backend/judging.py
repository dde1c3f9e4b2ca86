"""How far two runs of a layer are from each other, and whether that is more than rounding."""

from __future__ import annotations

from collections.abc import Mapping

from gnn_backend import verify

BRANCHED = 1e-2
"""Errors of a precision above it come of another sign or choice, and tell nothing of rounding."""


def errors(
    stock: verify.Run, ours: verify.Run
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Return the absolute, relative and judged errors of outputs and gradients, by name.

    A gradient that one side lacks counts as zero; one that both lack is left out.
    """
    absolute: dict[str, float] = {}
    relative: dict[str, float] = {}
    judged: dict[str, float] = {}
    for wanted, found in ((stock.outputs, ours.outputs), (stock.gradients, ours.gradients)):
        least = verify.least_scale(wanted)  # type: ignore[arg-type]
        for name, expected in wanted.items():
            got = found[name]  # type: ignore[index]
            if expected is None and got is None:
                continue
            difference, scale = verify.difference_and_scale(*verify.none_as_zero(expected, got))
            worst = float(difference.max()) if difference.numel() else 0.0
            absolute[name] = worst
            relative[name], judged[name] = (_ratio(worst, s) for s in (scale, max(scale, least)))
    return absolute, relative, judged


def _ratio(worst: float, scale: float) -> float:
    return worst / scale if scale else (0.0 if worst == 0 else float("inf"))


def differing(
    judged: Mapping[str, float], rounding: Mapping[str, float], tolerance: float
) -> dict[str, float]:
    """The judged errors that neither the tolerance nor rounding accounts for.

    Two runs in one precision, each as far from the exact result as stock is, are up to twice as
    far from each other.

    Parameters
    ----------
    judged, rounding : dict of str to float
        Of a :class:`Comparison`.
    tolerance : float

    Returns
    -------
    dict of str to float
        By tensor; empty if all is well.
    """
    allowed = {name: 2 * error for name, error in rounding.items() if error <= BRANCHED}
    return {name: e for name, e in judged.items() if not e <= max(tolerance, allowed.get(name, 0))}

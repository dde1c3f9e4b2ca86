"""What may be moved to rows that have no elements.

A maximum of nothing is -inf, and so is its log-sum-exp. No element reads such a row, so that it
does no harm; but 0 times it is NaN, where a sum over no element was 0.
"""

from __future__ import annotations

from gnn_backend.ir.values import Value

_POLES = ("div", "reciprocal", "log")


def is_finite(value: Value) -> bool:
    """Whether a value is finite, in rows without elements too, where its inputs are.

    What a forward pass saved may be a maximum, and counts as one.
    """
    return not _has(value, poles=True)


def has_extremes(value: Value) -> bool:
    """Whether a value is made of maxima, minima or log-sum-exps of rows."""
    return _has(value, poles=False)


def _has(value: Value, poles: bool) -> bool:
    pending, seen = [value], {value}
    while pending:
        found = pending.pop()
        if found.op == "input" and str(found.attrs["name"]).startswith("saved:"):
            return True
        if found.op == "reduce" and found.attrs["how"] not in ("sum", "mean"):
            return True
        if poles and found.op in _POLES:
            return True
        pending += [a for a in found.args if a not in seen]
        seen.update(found.args)
    return False

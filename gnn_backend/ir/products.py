"""Products, and sums that are weighted by the softmax over their own row."""

from __future__ import annotations

from dataclasses import dataclass

from gnn_backend.ir import values as ir
from gnn_backend.ir.values import Program, Value


@dataclass(frozen=True)
class Weighted:
    """``reduce sum (exp(logit - gather(lse)) * value)``; see :func:`as_weighted`."""

    logit: Value
    lse: Value
    value: Value


def as_weighted(total: Value) -> Weighted | None:
    """A sum weighted by the softmax over its own row, where it has this form."""
    if total.op != "reduce" or total.attrs["how"] != "sum":
        return None
    factors = factors_of(total.args[0])
    for place, factor in enumerate(factors):
        found = _softmax_of(factor, total)
        others = factors[:place] + factors[place + 1 :]
        if found is None or not others:
            continue
        value = others[0]
        for other in others[1:]:
            value = ir.binary("mul", value, other)
        if value.shape != total.shape or found[1] in _ancestors(value):
            continue
        return Weighted(*found, value)
    return None


def factors_of(value: Value) -> list[Value]:
    """The factors of a product of products."""
    if value.op != "mul":
        return [value]
    return [factor for arg in value.args for factor in factors_of(arg)]


def _softmax_of(weight: Value, total: Value) -> tuple[Value, Value] | None:
    """Logit and log-sum-exp of ``exp(logit - gather(lse))`` over the rows of ``total``."""
    if weight.op != "exp" or weight.args[0].op != "sub":
        return None
    logit, norm = weight.args[0].args
    if norm.op != "gather":
        return None
    lse = norm.args[0]
    fits = lse.op == "reduce" and lse.attrs["how"] == "lse" and lse.domain is total.domain
    return (logit, lse) if fits and lse.args[0] is logit and logit.shape == lse.shape else None


def _ancestors(value: Value) -> set[Value]:
    return set(Program((), (value,)).values())

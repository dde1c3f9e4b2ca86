"""Forms that lowering expects, whatever passes ran before: views next to what is stored.

A view of a row (reshape, slice, transpose) is free where the row is stored, and has no place in a
kernel; so it changes places with what reads rows. Means become sums, and sums of products along a
row dot products.
"""

from __future__ import annotations

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.values import Program, Value

_VIEWS = ("reshape", "slice", "transpose")


def prepare(program: Program) -> Program:
    """The program in these forms."""
    return ir.rewrite(program, _rule)


def _rule(value: Value, args: tuple[Value, ...]) -> Value | None:
    if value.op in _VIEWS and args[0].op == "gather":
        inner = args[0].args[0]
        view = _rule_or_same(value, inner)
        return ir.gather(view, value.domain) if view.domain is inner.domain else None
    if value.op == "gather":
        return ir.gather(args[0], value.domain)  # composes with a gather behind it
    if value.op == "row_sum" and args[0].op == "mul":
        return _as_dot(value, *args[0].args)
    if value.op == "reduce" and value.attrs["how"] == "mean" and args[0].domain is Domain.EDGE:
        count = ir.binary("maximum", *ir.lift([ir.degree(value.domain), ir.const(1.0)]))
        return ir.binary("div", ir.reduce("sum", args[0], value.domain), count)
    return None


def _rule_or_same(view: Value, x: Value) -> Value:
    """The view of another row of the same shape, in its domain."""
    moved = ir.make(view.op, (x,), x.domain, view.shape, **view.attrs)
    return _rule(moved, (x,)) or moved


def _as_dot(value: Value, a: Value, b: Value) -> Value | None:
    """A sum over the last dimension of a product, both of whose factors have that dimension."""
    rank = len(value.shape) + 1
    last = int(value.attrs["dim"]) == rank - 1  # type: ignore[call-overload]
    fits = len(a.shape) == len(b.shape) == rank and a.shape[-1] == b.shape[-1]
    return ir.dot(a, b) if last and fits else None

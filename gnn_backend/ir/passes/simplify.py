"""Canonical forms: fewer operators, views next to what is stored, sums of what reads rows.

A view of a row (reshape, slice, transpose) is free where the row is stored, and has no place in a
kernel; so it changes places with what reads or sums rows. Common subexpressions and dead code need
no rule: values are interned, and a program has what its outputs are made of.
"""

from __future__ import annotations

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.values import Program, Value

_VIEWS = ("reshape", "slice", "transpose")
_ALIGNED = frozenset((*ir.BINARY,))


def simplify(program: Program) -> Program:
    """The program in canonical form: the rules until nothing changes."""
    while True:
        simpler = ir.rewrite(program, rule)
        if simpler.outputs == program.outputs:
            return simpler
        program = simpler


def rule(value: Value, args: tuple[Value, ...]) -> Value | None:
    """What takes the place of a value on these arguments; None: the operator as it is."""
    for attempt in (_views, _gathers, _arithmetic, _sums, _dots):
        found = attempt(value, args)
        if found is not None:
            return found
    return None


def _views(value: Value, args: tuple[Value, ...]) -> Value | None:
    """Views go behind what reads rows."""
    if value.op not in _VIEWS:
        return None
    if value.op == "reshape":
        composed = ir.reshape(args[0], value.shape)
        if composed.op != "reshape" or composed.args[0] is not args[0]:
            return composed
    if value.op == "slice" and args[0].op == "concat":
        return _slice_of_concat(value, args[0])
    if args[0].op != "gather":
        return None
    inner = args[0].args[0]
    return ir.gather(ir.make(value.op, (inner,), inner.domain, value.shape, **value.attrs),
                     value.domain)  # fmt: skip


def _slice_of_concat(value: Value, joined: Value) -> Value | None:
    """The pieces that a slice has something of."""
    start, stop, dim = (int(value.attrs[k]) for k in ("start", "stop", "dim"))  # type: ignore[call-overload]
    if dim != len(joined.shape) - 1:
        return None
    pieces, at = [], 0
    for piece in joined.args:
        width = piece.shape[-1]
        first, last = max(start - at, 0), min(stop - at, width)
        if first < last:
            pieces.append(ir.part(piece, first, last))
        at += width
    return pieces[0] if len(pieces) == 1 else ir.concat(*pieces)


def _gathers(value: Value, args: tuple[Value, ...]) -> Value | None:
    """A gather of a gather is one; so is one of a row that nothing but constants make."""
    if value.op != "gather":
        return None
    composed = ir.gather(args[0], value.domain)
    return composed if composed.args[:1] != args else None


def _arithmetic(value: Value, args: tuple[Value, ...]) -> Value | None:
    if value.op == "neg" and args[0].op == "neg":
        return args[0].args[0]
    if value.op in _ALIGNED:
        trimmed = tuple(_without_ones(a, value) for a in args)
        if trimmed != args and ir.broadcast(*(t.shape for t in trimmed)) == value.shape:
            return ir.make(value.op, trimmed, value.domain, value.shape)
    if value.op in ("mul", "div") and _number(args[1]) == 1.0 and args[0].shape == value.shape:
        return args[0]
    if value.op == "mul" and _number(args[0]) == 1.0 and args[1].shape == value.shape:
        return args[1]
    if value.op in ("add", "sub") and _number(args[1]) == 0.0 and args[0].shape == value.shape:
        return args[0]
    if value.op == "add" and _number(args[0]) == 0.0 and args[1].shape == value.shape:
        return args[1]
    return None


def _without_ones(x: Value, consumer: Value) -> Value:
    """A row [H] instead of [H, 1], as rows broadcast from the left."""
    if x.op != "reshape":
        return x
    inner = x.args[0]
    ones = x.shape[len(inner.shape) :]
    return inner if x.shape[: len(inner.shape)] == inner.shape and set(ones) == {1} else x


def _sums(value: Value, args: tuple[Value, ...]) -> Value | None:
    """Sums of rows go inside of what is linear in each row alone; means become sums."""
    if value.op != "reduce":
        return None
    x, how = args[0], value.attrs["how"]
    if how == "mean" and x.domain is Domain.EDGE and value.domain is not Domain.NODE_TYPE:
        count = ir.binary("maximum", *ir.lift([ir.degree(value.domain), ir.const(1.0)]))
        return ir.binary("div", ir.reduce("sum", x, value.domain), count)
    if how in ("sum", "max", "min") and x.op == "concat":
        return ir.concat(*(ir.reduce(str(how), piece, value.domain) for piece in x.args))
    if how == "sum" and x.op in ("row_sum", "reshape", "slice", "transpose", "neg"):
        inner = ir.reduce("sum", x.args[0], value.domain)
        return ir.make(x.op, (inner,), value.domain, value.shape, **x.attrs)
    return None


def _dots(value: Value, args: tuple[Value, ...]) -> Value | None:
    """A sum of products along the last dimension is a dot product; so is one of a concatenation."""
    if value.op == "row_sum" and args[0].op == "mul":
        a, b = args[0].args
        rank = len(value.shape) + 1
        last = int(value.attrs["dim"]) == rank - 1  # type: ignore[call-overload]
        fits = len(a.shape) == len(b.shape) == rank and a.shape[-1] == b.shape[-1]
        return ir.dot(a, b) if last and fits else None
    if value.op == "dot":
        for a, b in (args, args[::-1]):
            if a.op == "concat":
                return _split_dot(a, b)
    return None


def _split_dot(parts: Value, other: Value) -> Value:
    start, total = 0, None
    for piece in parts.args:
        stop = start + piece.shape[-1]
        term = ir.dot(piece, ir.part(other, start, stop))
        total = term if total is None else ir.binary("add", total, term)
        start = stop
    assert total is not None
    return total


def _number(value: Value) -> float | None:
    """The number that every element of a value is, if it is known."""
    while value.op == "gather":
        value = value.args[0]
    return float(value.attrs["value"]) if value.op == "const" else None  # type: ignore[arg-type]

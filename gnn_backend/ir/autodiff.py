"""Reverse mode on programs: the gradients of a program are a program.

Nothing is said here about what is stored: gradients refer to the values of the forward program, and
lowering decides which of them are kept and which are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import TypeAlias

from gnn_backend.errors import invalid
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.values import Program, Shape, Value

Gradients: TypeAlias = tuple[Value | None, ...]  # one an argument; None: none flows


def differentiate(program: Program, wrt: Sequence[str]) -> Program:
    """Gradients of a program's outputs, weighted by cotangents.

    Parameters
    ----------
    program : Program
    wrt : sequence of str
        Names of inputs.

    Returns
    -------
    Program
        Its inputs are those of ``program`` and ``grad:K``, the cotangent of output K, in the domain
        and shape of that output. Its outputs are the gradients of ``wrt``, in that order, 0 where
        none flows.

    Raises
    ------
    InvalidArgument
        A name is no input.

    Notes
    -----
    At a kink the derivative is torch's: 0 for relu, the slope for leaky_relu, half to each of two
    equal values of maximum and minimum, equal shares to all ties of a max or min reduction.
    """
    named = {v.attrs["name"]: v for v in program.inputs}
    for name in wrt:
        if name not in named:
            raise invalid("wrt", "no input", name, f"of {', '.join(map(str, named))}")
    targets = [named[name] for name in wrt]
    cotangents = tuple(
        ir.input_value(f"grad:{k}", v.domain, v.shape) for k, v in enumerate(program.outputs)
    )
    order = program.values()
    flowing = _depends(order, targets)
    adjoints: dict[Value, _Adjoint] = {v: _Adjoint(v) for v in flowing}
    for output, cotangent in zip(program.outputs, cotangents, strict=True):
        if output in adjoints:
            adjoints[output].add(cotangent)
    for value in reversed(order):
        if value not in adjoints or value.op == "input":
            continue
        gradient = adjoints[value].total()
        if gradient is not None:
            _spread(value, gradient, adjoints)
    gradients = tuple(
        (adjoints[v].total() if v in adjoints else None) or _fill(0.0, v.domain, v.shape)
        for v in targets
    )
    return Program((*program.inputs, *cotangents), gradients)


def _depends(order: Sequence[Value], targets: Sequence[Value]) -> set[Value]:
    """Values that are made of a target."""
    found = set(targets)
    for value in order:
        if any(arg in found for arg in value.args):
            found.add(value)
    return found.intersection(order)


class _Adjoint:
    """What flows back to a value, from all that use it."""

    def __init__(self, value: Value) -> None:
        self._value = value
        self._terms: list[Value] = []
        self._slices: dict[int, list[tuple[int, int, Value]]] = {}

    def add(self, gradient: Value) -> None:
        self._terms.append(gradient)

    def add_slice(self, used: Value, gradient: Value) -> None:
        """Of a slice of the value."""
        start, stop, dim = (int(used.attrs[k]) for k in ("start", "stop", "dim"))  # type: ignore[call-overload]
        self._slices.setdefault(dim, []).append((start, stop, gradient))

    def total(self) -> Value | None:
        terms = [*self._terms, *self._joined()]
        if not terms:
            return None
        total = terms[0]
        for term in terms[1:]:
            total = ir.binary("add", total, term)
        return total

    def _joined(self) -> Iterator[Value]:
        """Gradients of slices as rows of the value: slices that do not overlap share one."""
        for dim, slices in self._slices.items():
            left = sorted(slices, key=lambda s: s[:2])
            while left:
                row, rest, end = [], [], 0
                for piece in left:
                    if piece[0] >= end:
                        row.append(piece)
                        end = piece[1]
                    else:
                        rest.append(piece)
                yield _placed(row, self._value, dim)
                left = rest


def _spread(value: Value, gradient: Value, adjoints: dict[Value, _Adjoint]) -> None:
    """Send the gradient of a value on to its arguments."""
    wanted = [a for a in value.args if a in adjoints]
    if not wanted:
        return
    if value.op == "slice":
        adjoints[value.args[0]].add_slice(value, gradient)
        return
    for arg, found in zip(value.args, RULES[value.op](value, gradient), strict=True):
        if arg in adjoints and found is not None:
            adjoints[arg].add(found)


# --------------------------------------------------------------------------- shapes of rows


def _number(value: float, like: Value) -> Value:
    return ir.gather(ir.const(value), like.domain)


def _fill(value: float, domain: Domain, shape: Shape) -> Value:
    return ir.gather(ir.const(value, shape), domain)


def _mul(a: Value, b: Value) -> Value:
    return ir.binary("mul", a, b)


def _sum_to(x: Value, shape: Shape) -> Value:
    """Undo broadcasting: sum over what ``shape`` has not, or has once."""
    rank = len(x.shape)
    wanted = (*shape, *(1,) * (rank - len(shape)))
    for dim in range(rank - 1, -1, -1):
        if wanted[dim] == 1 and x.shape[dim] != 1:
            x = ir.row_sum(x, dim)
    return ir.reshape(x, shape)


def _product_to(a: Value, b: Value, shape: Shape) -> Value:
    """``a * b`` summed to ``shape``; a sum along the last dimension of both is a dot product."""
    full = ir.broadcast(a.shape, b.shape)
    rank = len(full)
    wanted = (*shape, *(1,) * (rank - len(shape)))
    both = len(a.shape) == len(b.shape) and a.shape[-1:] == b.shape[-1:]
    if both and rank and wanted[-1] == 1 and full[-1] != 1:
        return ir.reshape(_sum_to(ir.dot(a, b), wanted[:-1]), shape)
    return _sum_to(_mul(a, b), shape)


def _unsqueezed(x: Value, dim: int) -> Value:
    return ir.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))


def _placed(pieces: Sequence[tuple[int, int, Value]], like: Value, dim: int) -> Value:
    """Pieces (start, stop, value) along a dimension of rows shaped as those of ``like``, else 0.

    ``concat`` joins along the last dimension, so dimensions from ``dim`` on become one.
    """
    lead, inner = like.shape[:dim], prod(like.shape[dim + 1 :])
    columns: list[Value] = []
    at = 0
    for start, stop, piece in (*pieces, (like.shape[dim], like.shape[dim], None)):
        if start > at:
            columns.append(_fill(0.0, like.domain, (*lead, (start - at) * inner)))
        if piece is not None:
            columns.append(ir.reshape(piece, (*lead, (stop - start) * inner)))
        at = stop
    joined = ir.concat(*columns) if len(columns) > 1 else columns[0]
    return ir.reshape(joined, like.shape)


# --------------------------------------------------------------------------- element by element


def _neg(y: Value, g: Value) -> Gradients:
    return (ir.unary("neg", g),)


def _exp(y: Value, g: Value) -> Gradients:
    return (_mul(g, y),)


def _log(y: Value, g: Value) -> Gradients:
    return (ir.binary("div", g, y.args[0]),)


def _sqrt(y: Value, g: Value) -> Gradients:
    return (ir.binary("div", _mul(g, _number(0.5, g)), y),)


def _reciprocal(y: Value, g: Value) -> Gradients:
    return (ir.unary("neg", _mul(g, _mul(y, y))),)


def _tanh(y: Value, g: Value) -> Gradients:
    return (_mul(g, ir.binary("sub", _number(1.0, y), _mul(y, y))),)


def _sigmoid(y: Value, g: Value) -> Gradients:
    return (_mul(g, _mul(y, ir.binary("sub", _number(1.0, y), y))),)


def _relu(y: Value, g: Value) -> Gradients:
    return (_mul(g, ir.binary("greater", y, _number(0.0, y))),)


def _leaky_relu(y: Value, g: Value) -> Gradients:
    return (_mul(g, ir.unary("slope", y.args[0], slope=float(y.attrs["slope"]))),)  # type: ignore[arg-type]


def _add(y: Value, g: Value) -> Gradients:
    return tuple(_sum_to(g, a.shape) for a in y.args)


def _sub(y: Value, g: Value) -> Gradients:
    a, b = y.args
    return _sum_to(g, a.shape), ir.unary("neg", _sum_to(g, b.shape))


def _product(y: Value, g: Value) -> Gradients:
    a, b = y.args
    return _product_to(g, b, a.shape), _product_to(g, a, b.shape)


def _div(y: Value, g: Value) -> Gradients:
    a, b = y.args
    first = ir.binary("div", g, b)
    return _sum_to(first, a.shape), ir.unary("neg", _product_to(first, y, b.shape))


def _extremum(y: Value, g: Value) -> Gradients:
    """Of maximum and minimum: to the argument that was taken, half to each of two equal ones."""
    a, b = y.args
    half = _mul(ir.binary("equal", a, b), _number(0.5, y))
    ends = (a, b) if y.op == "maximum" else (b, a)
    to_a = ir.binary("add", ir.binary("greater", *ends), half)
    to_b = ir.binary("add", ir.binary("greater", *reversed(ends)), half)
    return _product_to(g, to_a, a.shape), _product_to(g, to_b, b.shape)


def _none(y: Value, g: Value) -> Gradients:
    return (None,) * len(y.args)


# --------------------------------------------------------------------------- rows


def _dot(y: Value, g: Value) -> Gradients:
    a, b = y.args
    g = _unsqueezed(g, len(g.shape))
    return _product_to(g, b, a.shape), _product_to(g, a, b.shape)


def _outer(y: Value, g: Value) -> Gradients:
    a, b = y.args
    rank = len(a.shape)
    to_a = ir.dot(g, _unsqueezed(b, rank - 1))
    to_b = ir.dot(ir.transpose(g), _unsqueezed(a, rank - 1))
    return _sum_to(to_a, a.shape), _sum_to(to_b, b.shape)


def _matmul(y: Value, g: Value) -> Gradients:
    a, b = y.args
    to_a, to_b = ir.matmul(g, ir.transpose(b)), ir.matmul(ir.transpose(a), g)
    return _sum_to(to_a, a.shape), _sum_to(to_b, b.shape)


def _linear(y: Value, g: Value) -> Gradients:
    x, weight = y.args
    transposed = bool(y.attrs["transposed"])
    pair = (g, x) if transposed else (x, g)
    to_x = ir.linear(g, weight, transposed=not transposed)
    return to_x, ir.weight_grad(*pair, weight.domain, heads=len(weight.shape) == 3)


def _weight_grad(y: Value, g: Value) -> Gradients:
    x, grad = y.args
    return ir.linear(grad, g, transposed=True), ir.linear(x, g)


def _row_sum(y: Value, g: Value) -> Gradients:
    x = y.args[0]
    ones = _fill(1.0, x.domain, x.shape)
    return (_mul(_unsqueezed(g, int(y.attrs["dim"])), ones),)  # type: ignore[call-overload]


def _transpose(y: Value, g: Value) -> Gradients:
    return (ir.transpose(g),)


def _concat(y: Value, g: Value) -> Gradients:
    found, start = [], 0
    for arg in y.args:
        stop = start + arg.shape[-1]
        found.append(ir.part(g, start, stop))
        start = stop
    return tuple(found)


def _reshape(y: Value, g: Value) -> Gradients:
    return (ir.reshape(g, y.args[0].shape),)


# --------------------------------------------------------------------------- between domains


def _gather(y: Value, g: Value) -> Gradients:
    return (ir.reduce("sum", g, y.args[0].domain),)


def _reduce(y: Value, g: Value) -> Gradients:
    x = y.args[0]
    how = y.attrs["how"]
    if how == "mean":
        # Rows without an element are divided by 0, and read by none.
        g = _mul(g, ir.unary("reciprocal", _count(x.domain, y.domain)))
    if how in ("sum", "mean"):
        return (ir.gather(g, x.domain),)
    read = ir.gather(y, x.domain)
    if how == "lse":
        return (_mul(ir.gather(g, x.domain), ir.unary("exp", ir.binary("sub", x, read))),)
    hit = ir.binary("equal", x, read)
    share = ir.binary("div", g, ir.reduce("sum", hit, y.domain))
    return (_mul(ir.gather(share, x.domain), hit),)


def _count(fine: Domain, coarse: Domain) -> Value:
    """How many rows of ``fine`` belong to each of ``coarse``."""
    if fine is Domain.EDGE:
        return ir.degree(coarse)
    return ir.reduce("sum", ir.gather(ir.const(1.0), fine), coarse)


#: What each operator sends back to its arguments, given its own value and gradient.
RULES: dict[str, Callable[[Value, Value], Gradients]] = {
    "neg": _neg, "exp": _exp, "log": _log, "sqrt": _sqrt, "reciprocal": _reciprocal,
    "tanh": _tanh, "sigmoid": _sigmoid, "relu": _relu, "leaky_relu": _leaky_relu, "slope": _none,
    "add": _add, "sub": _sub, "mul": _product, "div": _div, "maximum": _extremum,
    "minimum": _extremum, "equal": _none, "greater": _none,
    "dot": _dot, "outer": _outer, "matmul": _matmul, "linear": _linear,
    "weight_grad": _weight_grad, "row_sum": _row_sum, "transpose": _transpose, "concat": _concat,
    "reshape": _reshape, "gather": _gather, "reduce": _reduce,
}  # fmt: skip

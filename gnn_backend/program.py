"""Write a relational layer as a function of one edge.

    from gnn_backend.program import dot, leaky_relu, linear, program, softmax

    @program
    def rgat(edge, x, weight, att_src, att_dst, slope=0.2):
        z_src = linear(x[edge.src], weight[edge.type])
        z_dst = linear(x[edge.dst], weight[edge.type])
        logit = dot(att_src[edge.type], z_src) + dot(att_dst[edge.type], z_dst)
        return edge.sum(softmax(leaky_relu(logit, slope)) * z_src)

    out = rgat(relations, x=x, weight=weight, att_src=att_src, att_dst=att_dst)

Arguments after ``edge`` are tables, whose rows follow from how they are read: ``t[edge.src]``,
``t[edge.dst]``, ``t[edge]`` (a row an edge), ``t[edge.type]``, ``t[edge.src.type]`` and
``t[edge.dst.type]`` (a row a node type), ``t[edge.node]`` and ``t[edge.node.type]`` (the
destination, for what is computed after aggregation); a table that is not indexed is a parameter.
Arguments that are given no tensor are constants, known when the function is traced.

Values are rows: shapes name what one edge, node or type has, [heads, dim] for instance. Rows
broadcast from the left: a score [heads] scales rows [heads, dim].
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.execute import compiled
from gnn_backend.ir.interpret import evaluate
from gnn_backend.ir.passes import DEFAULT, Options
from gnn_backend.ir.trace import (
    Edge,
    Index,
    Operand,
    Symbol,
    Table,
    Traced,
    apply_row,
    combine,
    group_of,
    of_edges,
    symbol,
    together,
    trace,
    typed_linear,
)
from gnn_backend.ir.values import Program

__all__ = [
    "Edge", "Options", "RelationalProgram", "Symbol", "Table", "concat", "dot", "exp", "flat",
    "heads", "leaky_relu", "linear", "log", "maximum", "minimum", "outer", "program", "relu",
    "reshape", "sigmoid", "softmax", "split", "sqrt", "tanh",
]  # fmt: skip

# --------------------------------------------------------------------------- vocabulary


def linear(x: Operand, weight: Operand) -> Symbol:
    """Product of each row with the weight of its type.

    Parameters
    ----------
    x : rows [..., I]
    weight : [I, O], or [H, I, O] with x [H, I]
        A parameter, or a table read by ``edge.type`` or by a node's type. By a node's type only
        with rows of that node.

    Returns
    -------
    rows [..., O]
    """
    return typed_linear(symbol(x), symbol(weight))


def dot(a: Operand, b: Operand) -> Symbol:
    """Sum of products along the last dimension, [..., D] and [..., D] to [...]."""
    return together([symbol(a), symbol(b)], ir.dot)


def outer(a: Operand, b: Operand) -> Symbol:
    """Products of all pairs, [..., I] and [..., O] to [..., I, O]."""
    return together([symbol(a), symbol(b)], ir.outer)


def concat(*values: Operand) -> Symbol:
    """Rows one after the other along the last dimension."""
    return together([symbol(v) for v in values], ir.concat)


def split(x: Operand, parts: int) -> tuple[Symbol, ...]:
    """Rows [..., parts * D] in ``parts`` of [..., D]."""
    rows = symbol(x)
    if not rows.shape or parts < 1 or rows.shape[-1] % parts:
        raise invalid("parts", "does not divide the last dimension", parts,
                      f"a divisor for rows {list(rows.shape)}")  # fmt: skip
    width = rows.shape[-1] // parts
    starts = range(0, rows.shape[-1], width)
    return tuple(apply_row(rows, lambda v, s=s: ir.part(v, s, s + width)) for s in starts)  # type: ignore[misc]


def reshape(x: Operand, shape: Sequence[int]) -> Symbol:
    """Rows in another shape of as many numbers."""
    return apply_row(symbol(x), lambda v: ir.reshape(v, tuple(shape)))


def heads(x: Operand, number: int) -> Symbol:
    """Rows [..., F] as [..., number, F / number]."""
    rows = symbol(x)
    if not rows.shape or number < 1 or rows.shape[-1] % number:
        raise invalid("number", "does not divide the last dimension", number,
                      f"a divisor for rows {list(rows.shape)}")  # fmt: skip
    return reshape(rows, (*rows.shape[:-1], number, rows.shape[-1] // number))


def flat(x: Operand) -> Symbol:
    """Rows of any shape as [F]."""
    return apply_row(symbol(x), lambda v: ir.reshape(v, (v.size,)))


def softmax(logit: Operand, within: Index | None = None) -> Symbol:
    """Softmax over all edges of a destination, element by element.

    Parameters
    ----------
    logit : of edges
    within : ``edge.type``, optional
        Over the edges of a destination that have the same type.
    """
    value = of_edges(logit)
    total = ir.reduce("lse", value, group_of(within))
    shifted = ir.binary("sub", value, ir.gather(total, Domain.EDGE))
    return Symbol(ir.unary("exp", shifted), Domain.EDGE)


def maximum(a: Operand, b: Operand) -> Symbol:
    """The larger, element by element."""
    return combine("maximum", a, b)


def minimum(a: Operand, b: Operand) -> Symbol:
    """The smaller, element by element."""
    return combine("minimum", a, b)


def leaky_relu(x: Operand, slope: float = 0.01) -> Symbol:
    """x where positive, else ``slope * x``."""
    return apply_row(symbol(x), lambda v: ir.unary("leaky_relu", v, slope=float(slope)))


def _unary(op: str, meaning: str) -> Callable[[Operand], Symbol]:
    def apply(x: Operand) -> Symbol:
        return apply_row(symbol(x), lambda v: ir.unary(op, v))

    apply.__name__ = apply.__qualname__ = op
    apply.__doc__ = meaning
    return apply


exp = _unary("exp", "Exponential, element by element.")
log = _unary("log", "Natural logarithm, element by element.")
sqrt = _unary("sqrt", "Square root, element by element.")
tanh = _unary("tanh", "Hyperbolic tangent, element by element.")
sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)), element by element.")
relu = _unary("relu", "x where positive, else 0.")

# --------------------------------------------------------------------------- programs

Result: TypeAlias = "Tensor | tuple[Tensor, ...]"


class RelationalProgram:
    """A traced function; made by :func:`program`.

    Called with relations and tensors it compiles (once) and runs, with gradients to every tensor.
    """

    def __init__(self, function: Callable[..., Any], options: Options = DEFAULT) -> None:
        self.__wrapped__ = function
        self.options = options
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self._defaults = _defaults(function)
        self._traced: dict[Hashable, Traced] = {}
        self._indexed: set[frozenset[str]] = set()  # sets of arguments that were seen to have rows
        self._lock = threading.Lock()

    def __call__(self, relations: Relations, **arguments: Any) -> Result:
        """Run the compiled program.

        Parameters
        ----------
        relations : Relations
        **arguments
            Tensors [rows, ...] of one floating dtype on the device of the relations, parameters
            without rows; and constants.

        Returns
        -------
        Tensor or tuple of Tensor
            As the function returns: [num_dst, ...] of what is aggregated, [E, ...] of edges.

        Raises
        ------
        InvalidArgument
            An argument is missing or unknown, or has another shape, dtype or device; the message
            names it.
        """
        return self._run(self._execute, relations, arguments)

    def optimised(self, options: Options) -> RelationalProgram:
        """The same function, compiled with these optimizations and no others.

        Parameters
        ----------
        options : Options
            By default what is done is chosen by the graph's sizes.
        """
        return RelationalProgram(self.__wrapped__, options)

    def _execute(
        self, program: Program, relations: Relations, inputs: Mapping[str, Tensor]
    ) -> Sequence[Tensor]:
        return compiled(program, relations, self.options)(relations, inputs)

    def twin(self, relations: Relations, **arguments: Any) -> Result:
        """The same in plain torch, uncompiled: what results can be checked against."""
        return self._run(evaluate, relations, arguments)

    def trace(self, shapes: Mapping[str, Sequence[int]], **constants: Hashable) -> Program:
        """The program for tensors of these shapes.

        Parameters
        ----------
        shapes : mapping of str to torch.Size
            Of the tensors, rows included; the number of rows does not matter.
        **constants
            Arguments that are no tensors, where they differ from their defaults.
        """
        return self._trace(*self._bound({**shapes, **constants}, shapes)).program

    def _run(
        self,
        run: Callable[[Program, Relations, Mapping[str, Tensor]], Sequence[Tensor]],
        relations: Relations,
        arguments: Mapping[str, Any],
    ) -> Result:
        tensors = {k: a for k, a in arguments.items() if isinstance(a, Tensor)}
        shapes, constants = self._bound(arguments, {k: t.shape for k, t in tensors.items()})
        traced = self._trace(shapes, constants)
        _check(relations, traced, tensors)
        names = (str(v.attrs["name"]) for v in traced.program.inputs)
        inputs = {n: tensors[a] for n, a in zip(names, traced.arguments, strict=True)}
        outputs = run(traced.program, relations, inputs)
        return outputs[0] if traced.single else tuple(outputs)

    def _bound(
        self, given: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
    ) -> tuple[dict[str, tuple[int, ...]], dict[str, Hashable]]:
        """Shapes of tables and constants, in the order of the function's arguments."""
        for name in given:
            if name not in self._defaults:
                raise invalid(name, f"no argument of {self.__name__}", name, list(self._defaults))
        constants = {}
        for name, default in self._defaults.items():
            if name in shapes:
                continue
            constant = given.get(name, default)
            if default is inspect.Parameter.empty and constant in (default, None):
                raise invalid(name, "missing", f"arguments {list(given)}", list(self._defaults))
            if not isinstance(constant, Hashable):
                raise invalid(name, "no constant", type(constant).__name__,
                              "a tensor, or a value that hashes, as a number or tuple")  # fmt: skip
            constants[name] = constant
        return {k: tuple(shapes[k]) for k in self._defaults if k in shapes}, constants

    def _trace(self, shapes: dict[str, tuple[int, ...]], constants: dict[str, Hashable]) -> Traced:
        with self._lock:
            for indexed in self._indexed:
                found = self._traced.get(_key(indexed, shapes, constants))
                if found is not None:
                    return found
        made = trace(self.__wrapped__, shapes, constants)
        with self._lock:
            self._indexed.add(made.indexed)
            return self._traced.setdefault(_key(made.indexed, shapes, constants), made)

    def __repr__(self) -> str:
        return f"<program {self.__name__}({', '.join(self._defaults)})>"


def program(function: Callable[..., Any]) -> RelationalProgram:
    """Make a layer of a function ``(edge, table, ..., constant=...)``; see the module."""
    return RelationalProgram(function)


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments after the edge, with their defaults."""
    parameters = list(inspect.signature(function).parameters.values())
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if not parameters or any(p.kind not in named for p in parameters):
        raise invalid("function", "wrong signature", str(inspect.signature(function)),
                      "(edge, name, ..., name=constant)")  # fmt: skip
    return {p.name: p.default for p in parameters[1:]}


def _key(
    indexed: frozenset[str], shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Any]
) -> Hashable:
    """What a trace depends on: the number of rows does not count."""
    rows = tuple((k, s[1:] if k in indexed else s) for k, s in shapes.items())
    # 1, 1.0 and True are equal keys, but a function may tell them apart.
    return indexed, rows, tuple((k, type(c), c) for k, c in constants.items())


def _check(relations: Relations, traced: Traced, tensors: Mapping[str, Tensor]) -> None:
    first: Tensor | None = None
    for argument, value in zip(traced.arguments, traced.program.inputs, strict=True):
        tensor = tensors[argument]
        first = tensor if first is None else first
        rows = relations.num(value.domain)
        if value.domain is not Domain.PARAM and tensor.shape[0] != rows:
            raise invalid(argument, "wrong number of rows", list(tensor.shape),
                          [rows, *value.shape], f"One for each {value.domain.value}.")  # fmt: skip
        if not tensor.is_floating_point() or tensor.dtype != first.dtype:
            expected = first.dtype if first.is_floating_point() else torch.float32
            raise invalid(argument, "wrong dtype", tensor.dtype, expected)
        if tensor.device != relations.device:
            raise invalid(argument, "on another device", tensor.device, relations.device)

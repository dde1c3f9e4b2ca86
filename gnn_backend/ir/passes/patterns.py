"""What the rules of linear operators look for, and how they are applied."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.values import Program, Value

Sizes = Mapping[Domain, int]
#: Whether a value is there for one consumer alone, and goes with it.
Single: TypeAlias = Callable[[Value], bool]
Rule: TypeAlias = Callable[[Value, Single, Sizes], Value | None]


@dataclass(frozen=True)
class Typed:
    """``view(gather(linear(x, weight)))``: what the rules look for.

    Attributes
    ----------
    linear : Value
    between : tuple of Value
        From the product to the value itself, outermost first: gathers and reshapes.
    """

    linear: Value
    between: tuple[Value, ...]

    @property
    def weight(self) -> Value:
        return self.linear.args[1]

    @property
    def gathered(self) -> bool:
        """Whether nothing but gathers is between."""
        return all(b.op == "gather" for b in self.between)


def typed_of(value: Value, single: Single) -> Typed | None:
    """The product of a value of this form that is used here alone."""
    between: list[Value] = []
    while value.op in ("gather", "reshape"):
        if not single(value):
            return None
        between.append(value)
        value = value.args[0]
    if value.op != "linear" or not single(value):
        return None
    return Typed(value, tuple(between))


def scales(factor: Value, rows: Value) -> bool:
    """Whether a factor is one number along the last dimension of rows: it passes a product."""
    rank = len(rows.shape)
    return len(factor.shape) < rank or (len(factor.shape) == rank and factor.shape[-1] == 1)


def scaled(x: Value, factors: Collection[Value]) -> Value:
    """Rows times factors, one after the other."""
    for factor in factors:
        x = ir.binary("mul", x, factor)
    return x


def applied(program: Program, sizes: Sizes, one: Rule, reuse: Collection[Value]) -> Program:
    """A rule applied wherever it holds; what is in ``reuse`` is kept alive by others."""
    consumers, outputs = program.consumers(), set(program.outputs)

    def single(value: Value) -> bool:
        return len(consumers[value]) == 1 and value not in outputs and value not in reuse

    replaced: dict[Value, Value] = {}
    for value in program.values():
        found = None if value in reuse else one(value, single, sizes)
        if found is not None:
            replaced[value] = found
    if not replaced:
        return program

    def rule(value: Value, args: tuple[Value, ...]) -> Value | None:
        # A rule looked at what was there before; its result is made of that.
        return replaced.get(value)

    return ir.rewrite(program, rule)

"""Registers of a traversal in Numba: loads, operators and dot products.

Registers without columns are local variables; those with columns are expressions of the column k,
written out wherever they are used, in loops that the compiler vectorises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from gnn_backend.ir.domains import Domain
from gnn_backend.ir.source_text import SourceText, row_of
from gnn_backend.ir.traversal import Step, Traversal

_OPERATORS = {
    "neg": "(-{0})", "exp": "math.exp({0})", "log": "math.log({0})", "sqrt": "math.sqrt({0})",
    "reciprocal": "(ONE / {0})", "tanh": "math.tanh({0})",
    "sigmoid": "(ONE / (ONE + math.exp(-{0})))", "relu": "relu({0})",
    "leaky_relu": "leaky({0}, {value})", "slope": "slope_of({0}, {value})",
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})",
    "maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})", "equal": "flag({0} == {1})",
    "greater": "flag({0} > {1})",
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """What else is fixed in a module.

    Attributes
    ----------
    real : {"float32", "float64"}
        What is computed in.
    offset : {"int32", "int64"}
        Of indices and ``indptr``.
    identity : frozenset of Domain
        Domains whose index of an element is its place.
    row_identity : frozenset of Domain
        Domains whose index of a row is its number.
    """

    real: str
    offset: str
    identity: frozenset[Domain] = frozenset()
    row_identity: frozenset[Domain] = frozenset()


class Colons(SourceText):
    """Text in blocks that a colon opens."""

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        """Write what follows in a block; ``line`` has its colon."""
        self.add(line)
        with self.indented():
            yield

    def function(self, signature: str, inline: bool = True) -> AbstractContextManager[None]:
        """Write what follows in a function."""
        self.add()
        self.add()
        if inline:
            self.add("@inline")
        return self.block(f"def {signature}:")


class Registers(Colons):
    """Text that computes with the registers of a traversal."""

    def __init__(self, traversal: Traversal, variant: Variant) -> None:
        super().__init__()
        self.t, self.v = traversal, variant

    def _literal(self, value: float) -> str:
        return f"np.{self.v.real}({value!r})"

    def _base(self, step: Step) -> str:
        """Where the row of a load begins, for its head."""
        table = self.t.inputs[step.table]
        width = table.heads * table.dim
        row = row_of(self.t, table, "r_{}", "e_{}")
        at = f"{row} * {width}" if width > 1 else row
        if table.heads > 1:
            at += f" + h * {table.dim}" if table.dim > 1 else " + h"
        return at

    def expression(self, number: int) -> str:
        """A register where h and k are known."""
        step = self.t.code[number]
        if step.op == "const":
            return self._literal(step.value)
        if step.dim == 1:
            return f"s{number}"
        if step.op == "load":
            return f"get(in{step.table}, b{number} + k)"
        return self._operator(step)

    def _operator(self, step: Step) -> str:
        args = [self.expression(a) for a in step.args]
        return _OPERATORS[step.op].format(*args, value=self._literal(step.value))

    def _compute(self, headed: bool, per_row: bool) -> None:
        """The registers of one scope, in order: with or without a head, of the row or element."""
        for number, step in enumerate(self.t.code):
            if step.op == "const" or step.per_row != per_row or (step.heads > 1) != headed:
                continue
            if step.op == "load" and step.dim > 1:
                self.add(f"b{number} = {self._base(step)}")
            elif step.op == "load":
                self.add(f"s{number} = get(in{step.table}, {self._base(step)})")
            elif step.op == "dot":
                a, b = (self.expression(x) for x in step.args)
                self.add(f"s{number} = ZERO")
                with self.block(f"for k in range({self._dot_dim(step)}):"):
                    self.add(f"s{number} += {a} * {b}")
            elif step.dim == 1:
                self.add(f"s{number} = {self._operator(step)}")

    def _dot_dim(self, step: Step) -> int:
        return max(self.t.code[a].dim for a in step.args)

    def _row_scalars(self) -> list[int]:
        """Registers of the row with a head and no column: kept in memory across elements."""
        return [n for n, s in enumerate(self.t.code)
                if s.per_row and s.dim == 1 and s.heads > 1 and s.op != "const"]  # fmt: skip

    def row_registers(self) -> None:
        """What is fixed by the row: indices, and registers without a head; the others kept."""
        for domain in self.t.row_indices():
            name = domain.name.lower()
            same = domain in self.v.row_identity
            self.add(f"r_{name} = " + ("row" if same else f"np.int64(get(row_by_{name}, row))"))
        self._compute(headed=False, per_row=True)
        kept = self._row_scalars()
        if kept:
            with self.block(f"for h in range({self.t.heads}):"):
                self._compute(headed=True, per_row=True)
                for place, number in enumerate(kept):
                    self.add(f"put(kept, {place * self.t.heads} + h, s{number})")

    def element_registers(self) -> None:
        """What an element has for all heads."""
        for domain in self.t.indices():
            name = domain.name.lower()
            same = domain in self.v.identity
            self.add(f"e_{name} = " + ("e" if same else f"np.int64(get(by_{name}, e))"))
        self._compute(headed=False, per_row=False)

    def head_registers(self) -> None:
        """In the loop over heads of an element."""
        for place, number in enumerate(self._row_scalars()):
            self.add(f"s{number} = get(kept, {place * self.t.heads} + h)")
        for number, step in enumerate(self.t.code):
            if step.per_row and step.op == "load" and step.dim > 1 and step.heads > 1:
                self.add(f"b{number} = {self._base(step)}")
        self._compute(headed=True, per_row=False)

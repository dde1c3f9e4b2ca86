"""Registers of a traversal in CUDA: loads, operators and dot products.

Registers without columns are arrays over the elements in flight, those with columns expressions of
a lane's value i, written out where they are used: what was loaded is unpacked once an element.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gnn_backend.ir.source_text import SourceText, row_of
from gnn_backend.ir.traversal import Step, Table, Traversal

_OPERATORS = {
    "neg": "(-{0})", "exp": "exponential({0})", "log": "logarithm({0})", "sqrt": "sqrtf({0})",
    "reciprocal": "(1.f / {0})", "tanh": "tanh_of({0})", "sigmoid": "sigmoid_of({0})",
    "relu": "relu_of({0})", "leaky_relu": "leaky_of({0}, {value})",
    "slope": "slope_of({0}, {value})", "add": "({0} + {1})", "sub": "({0} - {1})",
    "mul": "({0} * {1})", "div": "({0} / {1})", "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})", "equal": "flag({0} == {1})", "greater": "flag({0} > {1})",
}  # fmt: skip


class Braces(SourceText):
    """Text in blocks of braces."""

    @contextmanager
    def block(self, line: str, end: str = "}") -> Iterator[None]:
        """Write what follows in a block."""
        self.add(line + " {")
        with self.indented():
            yield
        self.add(end)

    @contextmanager
    def each(self, variable: str, count: str) -> Iterator[None]:
        """Write what follows in an unrolled loop."""
        self.add("#pragma unroll")
        with self.block(f"for (int {variable} = 0; {variable} < {count}; {variable}++)"):
            yield


def _literal(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        sign = "-" if value == float("-inf") else ""
        return f"({sign}__int_as_float(0x{'7f800000' if value == value else '7fc00000'}))"
    return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.f"


class Registers(Braces):
    """Text that computes with the registers of a traversal."""

    def __init__(self, traversal: Traversal) -> None:
        super().__init__()
        self.t = traversal

    def _scalar(self, number: int, element: str) -> str:
        step = self.t.code[number]
        if step.op == "const":
            return _literal(step.value)
        return f"s{number}" if step.per_row else f"s{number}[{element}]"

    def expression(self, number: int, element: str = "u") -> str:
        """A register, of an element in flight, and where it has columns of a lane's value i."""
        step = self.t.code[number]
        if step.dim == 1 or step.op == "const":
            return self._scalar(number, element)
        if step.op == "load":
            return f"x{number}[i]"
        return self._operator(step, element)

    def _operator(self, step: Step, element: str) -> str:
        args = [self.expression(a, element) for a in step.args]
        return _OPERATORS[step.op].format(*args, value=_literal(step.value))

    def columns_in(self, number: int) -> list[int]:
        """Loads with columns that a register is written out to."""
        step = self.t.code[number]
        if step.dim == 1 or step.op == "const":
            return []
        if step.op == "load":
            return [number]
        return sorted({c for a in step.args for c in self.columns_in(a)})

    def unpack(self, numbers: list[int], element: str = "u") -> None:
        """Declare the columns of loads of an element; those of the row are unpacked already."""
        for number in numbers:
            if not self.t.code[number].per_row:
                self.add(f"float x{number}[K];")
                self.add(f"r{number}[{element}].unpack(x{number});")

    def place(self, table: Table, row: str) -> str:
        """Where the number of a table without columns is."""
        return f"(i64){row} * args.heads + at.head" if table.heads > 1 else f"(i64){row}"

    def lane(self, table: Table) -> str:
        """The lane's columns of a table."""
        return "at" if table.heads > 1 or self.t.heads == 1 else "one"

    def _row_of(self, table: Table, element: str) -> str:
        return row_of(self.t, table, "row_{}", f"e_{{}}[{element}]")

    def _load_columns(self, number: int, step: Step, element: str, live: str) -> None:
        table = self.t.inputs[step.table]
        row = self._row_of(table, element)
        target = f"r{number}" if step.per_row else f"r{number}[{element}]"
        self.add(f"{target}.load(args.in{step.table}, {self.lane(table)}, {row}, {live});")

    def _compute(self, per_row: bool, element: str, live: str) -> None:
        """Registers without columns, in order: loads, operators and dot products."""
        for number, step in enumerate(self.t.code):
            if step.per_row != per_row or step.dim > 1 or step.op == "const":
                continue
            target = f"float s{number}" if per_row else f"s{number}[{element}]"
            if step.op == "load":
                table = self.t.inputs[step.table]
                at = self.place(table, self._row_of(table, element))
                self.add(f"{target} = {live} ? number_at<T>(args.in{step.table}, {at}) : 0.f;")
            elif step.op == "dot":
                self._dot(number, step, target, element)
            else:
                self.add(f"{target} = {self._operator(step, element)};")

    def _dot(self, number: int, step: Step, target: str, element: str) -> None:
        a, b = (self.expression(x, element) for x in step.args)
        if all(self.t.code[x].dim == 1 for x in step.args):
            self.add(f"{target} = {a} * {b};")
            return
        self.add(f"float p{number} = 0.f;")
        with self.each("i", "K"):
            self.add(f"if (holds_value(at, i)) p{number} = fmaf({a}, {b}, p{number});")
        self.add(f"{target} = head_sum<S>(p{number});")

    def row_registers(self) -> None:
        """What the row fixes: its indices, its rows of tables, and what follows from these."""
        for domain in self.t.row_indices():
            name = domain.name.lower()
            index = f"args.row_by_{name}"
            self.add(f"const int row_{name} = {index} ? __ldg({index} + row) : row;")
        for number, step in enumerate(self.t.code):
            if step.per_row and step.op == "load" and step.dim > 1:
                self.add(f"Raw<S> r{number};")
                self._load_columns(number, step, "u", "true")
                self.add(f"float x{number}[K];")
                self.add(f"r{number}.unpack(x{number});")
        self._compute(True, "u", "true")

    def element_registers(self) -> None:
        """U elements: their indices, their rows, then what is computed of them."""
        loads = [(n, s) for n, s in enumerate(self.t.code)
                 if s.op == "load" and not s.per_row and s.dim > 1]  # fmt: skip
        scalars = [n for n, s in enumerate(self.t.code)
                   if not s.per_row and s.dim == 1 and s.op != "const"]  # fmt: skip
        self._element_indices()
        for number, _ in loads:
            self.add(f"Raw<S> r{number}[U];")
        if scalars:
            self.add("float " + ", ".join(f"s{n}[U]" for n in scalars) + ";")
        if loads:
            with self.each("u", "U"):
                for number, step in loads:
                    self._load_columns(number, step, "u", "live[u]")
        if scalars:
            needed = {c for n in scalars if self.t.code[n].op == "dot"
                      for a in self.t.code[n].args for c in self.columns_in(a)}  # fmt: skip
            with self.each("u", "U"):
                self.unpack(sorted(needed))
                self._compute(False, "u", "live[u]")

    def _element_indices(self) -> None:
        for domain in self.t.indices():
            self.add(f"int e_{domain.name.lower()}[U];")
        self.add("bool live[U];")
        with self.each("u", "U"):
            self.add("live[u] = first + u < count;")
            self.add("const i64 place = begin + first + u;")
            for domain in self.t.indices():
                name = domain.name.lower()
                found = f"args.by_{name} ? __ldg(args.by_{name} + place) : (int)place"
                self.add(f"e_{name}[u] = live[u] ? ({found}) : 0;")

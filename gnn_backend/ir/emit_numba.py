"""The Numba source of a traversal.

A kernel is a C function (block, address of the arguments), as the hand-written ones are. Rows are
cut into blocks of equal work by position on the merge path of elements and rows, so a block may
begin and end inside a row; what it has of such a row goes to one of its two slots, and ``merge``
combines the slots of each row in order. Nothing depends on the number of threads.

Registers without columns are local variables; those with columns are expressions of the column k,
written out wherever they are used, in loops that the compiler vectorises.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnn_backend.ir.accumulators import Accumulators, logit_of
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.traversal import Step, Table, Traversal

_HEAD = '''"""{title}

{listing}
"""

import math

import numpy as np
from numba import njit, types

from gnn_backend.runtime.cpu_memory import field, get, put, shift

REAL = types.{real}
INDEX = types.int32
OFFSET = types.{offset}
WHOLE = types.int64
OPTIONS = {{
    "fastmath": {{"contract", "nsz", "arcp", "afn", "reassoc"}}, "error_model": "numpy"
}}
inline = njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)
ZERO, ONE = np.{real}(0), np.{real}(1)
INF = np.{real}(np.inf)


@inline
def relu(x):
    return ZERO if x <= ZERO else x


@inline
def leaky(x, slope):
    return x if x > ZERO else slope * x


@inline
def slope_of(x, slope):
    return ONE if x > ZERO else slope


@inline
def larger(a, b):
    return a if a > b or a != a else b


@inline
def smaller(a, b):
    return a if a < b or a != a else b


@inline
def flag(truth):
    return ONE if truth else ZERO


@inline
def base_of(top):
    return top if -INF < top < INF else ZERO
'''

#: Fields of the block of arguments before the tables, in order.
FIELDS = ("indptr", "first_rows", "first_elements", "slots", "slot_row", "buffers", "rows",
          "blocks", "elements")  # fmt: skip
_POINTERS = {"indptr": "OFFSET", "first_rows": "WHOLE", "first_elements": "WHOLE", "slots": "REAL",
             "slot_row": "WHOLE", "buffers": "REAL"}  # fmt: skip


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


def arguments(traversal: Traversal) -> list[tuple[str, Domain | int | None]]:
    """Every field of the block of arguments: its name, and what it is of."""
    found: list[tuple[str, Domain | int | None]] = [(name, None) for name in FIELDS]
    found += [(f"by_{d.name.lower()}", d) for d in traversal.indices()]
    found += [(f"row_by_{d.name.lower()}", d) for d in traversal.row_indices()]
    found += [(f"in{n}", n) for n in range(len(traversal.inputs))]
    found += [(f"out{n}", n) for n in range(len(traversal.outputs))]
    return found


def source(traversal: Traversal, variant: Variant) -> str:
    """The text of the module: ``forward``, and ``merge`` where rows are reduced."""
    title = "A map." if traversal.rows is None else "A traversal."
    listing = "\n".join(traversal.listing())
    head = _HEAD.format(title=title, listing=listing, real=variant.real, offset=variant.offset)
    return head + _Writer(traversal, variant).text()


def slot_size(traversal: Traversal) -> int:
    """Values that a partial row takes."""
    return Accumulators(traversal).total


def buffer_size(traversal: Traversal) -> int:
    """Values of scratch memory a block."""
    kept = sum(1 for s in traversal.code if s.per_row and s.dim == 1)
    return Accumulators(traversal).total + kept * traversal.heads


class _Writer:
    """Lines of the module."""

    def __init__(self, traversal: Traversal, variant: Variant) -> None:
        self.t, self.v = traversal, variant
        self.layout = Accumulators(traversal)
        self.lines: list[str] = []
        self.indent = 0

    def text(self) -> str:
        if self.t.rows is None:
            self._map()
        else:
            self._clear()
            self._finish()
            self._row()
            self._forward()
            self._merge()
        return "\n".join(self.lines) + "\n"

    def add(self, line: str = "") -> None:
        self.lines.append("    " * self.indent + line if line else "")

    def block(self, line: str) -> _Indented:
        self.add(line)
        return _Indented(self)

    def function(self, signature: str, inline: bool = True) -> _Indented:
        self.add()
        self.add()
        if inline:
            self.add("@inline")
        return self.block(f"def {signature}:")

    # ------------------------------------------------------------------ arguments

    @property
    def names(self) -> list[str]:
        return [name for name, _ in arguments(self.t)]

    def _read_arguments(self) -> None:
        for place, (name, what) in enumerate(arguments(self.t)):
            kind = _POINTERS.get(name, "0")
            if name.startswith(("in", "out")) and isinstance(what, int):
                kind = "REAL"
            elif isinstance(what, Domain):
                same = self.v.row_identity if name.startswith("row_") else self.v.identity
                kind = "None" if what in same else "INDEX"
            self.add(f"{name} = field(address, {place}, {kind})")

    # ------------------------------------------------------------------ registers

    def literal(self, value: float) -> str:
        return f"np.{self.v.real}({value!r})"

    def base(self, step: Step) -> str:
        """Where the row of a load begins, for its head."""
        table = self.t.inputs[step.table]
        width = table.heads * table.dim
        row = self._row_of(table)
        at = f"{row} * {width}" if width > 1 else row
        if table.heads > 1:
            at += f" + h * {table.dim}" if table.dim > 1 else " + h"
        return at

    def _row_of(self, table: Table) -> str:
        if table.domain is Domain.PARAM:
            return "0"
        if self.t.by_row(table):
            return "row" if table.domain is self.t.rows else f"r_{table.domain.name.lower()}"
        return f"e_{table.domain.name.lower()}"

    def expression(self, number: int) -> str:
        """A register where h and k are known."""
        step = self.t.code[number]
        if step.op == "const":
            return self.literal(step.value)
        if step.dim == 1 and step.op != "const":
            return f"s{number}"
        if step.op == "load":
            return f"get(in{step.table}, b{number} + k)"
        return self._operator(step)

    def _operator(self, step: Step) -> str:
        args = [self.expression(a) for a in step.args]
        a, b = args[0], args[-1]
        return {
            "neg": f"(-{a})", "exp": f"math.exp({a})", "log": f"math.log({a})",
            "sqrt": f"math.sqrt({a})", "reciprocal": f"(ONE / {a})", "tanh": f"math.tanh({a})",
            "sigmoid": f"(ONE / (ONE + math.exp(-{a})))", "relu": f"relu({a})",
            "leaky_relu": f"leaky({a}, {self.literal(step.value)})",
            "slope": f"slope_of({a}, {self.literal(step.value)})",
            "add": f"({a} + {b})", "sub": f"({a} - {b})", "mul": f"({a} * {b})",
            "div": f"({a} / {b})", "maximum": f"larger({a}, {b})",
            "minimum": f"smaller({a}, {b})", "equal": f"flag({a} == {b})",
            "greater": f"flag({a} > {b})",
        }[step.op]  # fmt: skip

    def _compute(self, headed: bool, per_row: bool) -> None:
        """The registers of one scope, in order: with or without a head, of the row or element."""
        for number, step in enumerate(self.t.code):
            if step.op == "const" or step.per_row != per_row or self._headed(number) != headed:
                continue
            if step.op == "load" and step.dim > 1:
                self.add(f"b{number} = {self.base(step)}")
            elif step.op == "load":
                self.add(f"s{number} = get(in{step.table}, {self.base(step)})")
            elif step.op == "dot":
                a, b = (self.expression(x) for x in step.args)
                self.add(f"s{number} = ZERO")
                with self.block(f"for k in range({self._dot_dim(step)}):"):
                    self.add(f"s{number} += {a} * {b}")
            elif step.dim == 1:
                self.add(f"s{number} = {self._operator(step)}")

    def _dot_dim(self, step: Step) -> int:
        return max(self.t.code[a].dim for a in step.args)

    def _headed(self, number: int) -> bool:
        return self.t.code[number].heads > 1

    def _row_scalars(self) -> list[int]:
        """Registers of the row with a head and no column: kept in memory across elements."""
        return [n for n, s in enumerate(self.t.code)
                if s.per_row and s.dim == 1 and s.heads > 1 and s.op != "const"]  # fmt: skip

    def _row_registers(self) -> None:
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

    def _element_registers(self) -> None:
        for domain in self.t.indices():
            name = domain.name.lower()
            same = domain in self.v.identity
            self.add(f"e_{name} = " + ("e" if same else f"np.int64(get(by_{name}, e))"))
        self._compute(headed=False, per_row=False)

    def _head_registers(self) -> None:
        """In the loop over heads of an element."""
        for place, number in enumerate(self._row_scalars()):
            self.add(f"s{number} = get(kept, {place * self.t.heads} + h)")
        for number, step in enumerate(self.t.code):
            if step.per_row and step.op == "load" and step.dim > 1 and step.heads > 1:
                self.add(f"b{number} = {self.base(step)}")
        self._compute(headed=True, per_row=False)

    # ------------------------------------------------------------------ accumulators

    def _columns(self, table: Table, offset: int, line: str) -> None:
        """A line for each column of a head of an accumulator; ``at`` is its place."""
        head = f" + h * {table.dim}" if table.heads > 1 and table.dim > 1 else ""
        head = " + h" if table.heads > 1 and table.dim == 1 else head
        if table.dim > 1:
            with self.block(f"for k in range({table.dim}):"):
                self.add(f"at = {offset}{head} + k")
                self.add(line)
        else:
            self.add(f"at = {offset}{head}")
            self.add(line)

    def _clear(self) -> None:
        with self.function("clear(acc)"):
            for reduction, offset in zip(self.t.reductions, self.layout.sums, strict=True):
                table = self.t.outputs[reduction.table]
                start = {"max": "-INF", "min": "INF"}.get(reduction.how, "ZERO")
                if reduction.how != "lse":
                    with self.block(f"for k in range({table.heads * table.dim}):"):
                        self.add(f"put(acc, {offset} + k, {start})")
            for logit, at in self.layout.states.items():
                heads = self.t.code[logit].heads
                with self.block(f"for h in range({heads}):"):
                    self.add(f"put(acc, {at} + h, -INF)")
                    self.add(f"put(acc, {at + heads} + h, ZERO)")

    def _weights(self, headed: bool) -> None:
        """Softmax weights w and factors f of what was summed, of the logits of one scope."""
        for logit, at in self.layout.states.items():
            heads = self.t.code[logit].heads
            if (heads > 1) != headed:
                continue
            h = " + h" if headed else ""
            score = self.expression(logit)
            self.add(f"x{logit} = {score}")
            self.add(f"top = get(acc, {at}{h})")
            self.add(f"f{logit} = ONE")
            with self.block(f"if x{logit} > top:"):
                self.add(f"f{logit} = math.exp(top - x{logit})")
                self.add(f"top = x{logit}")
                self.add(f"put(acc, {at}{h}, top)")
            self.add(f"w{logit} = math.exp(x{logit} - base_of(top))")
            place = f"{at + heads}{h}"
            self.add(f"put(acc, {place}, get(acc, {place}) * f{logit} + w{logit})")

    def _accumulate(self, headed: bool) -> None:
        for reduction, offset in zip(self.t.reductions, self.layout.sums, strict=True):
            table = self.t.outputs[reduction.table]
            if (table.heads > 1) != headed or reduction.how == "lse":
                continue
            value, old = self.expression(reduction.value), "get(acc, at)"
            logit = reduction.logit
            new = {
                "sum": f"{old} + {value}",
                "max": f"larger({old}, {value})",
                "min": f"smaller({old}, {value})",
                "softmax": f"{old} * f{logit} + w{logit} * {value}",
            }[reduction.how]
            self._columns(table, offset, f"put(acc, at, {new})")

    def _stores(self, headed: bool) -> None:
        for store in self.t.stores:
            table = self.t.outputs[store.table]
            if (table.heads > 1) != headed:
                continue
            width = table.heads * table.dim
            value = self.expression(store.value)
            offset = f"e_{self.t.elements.name.lower()} * {width}"
            self._columns_of(table, offset, f"put(out{store.table}, at, {value})")

    def _columns_of(self, table: Table, offset: str, line: str) -> None:
        head = f" + h * {table.dim}" if table.heads > 1 else ""
        if table.dim > 1:
            with self.block(f"for k in range({table.dim}):"):
                self.add(f"at = {offset}{head} + k")
                self.add(line)
        else:
            self.add(f"at = {offset}{head}")
            self.add(line)

    def _element(self) -> None:
        """The body of the loop over elements."""
        self._element_registers()
        if self.t.rows is not None:
            self._weights(headed=False)
            self._accumulate(headed=False)
        self._stores(headed=False)
        if self._any_headed():
            with self.block(f"for h in range({self.t.heads}):"):
                self._head_registers()
                if self.t.rows is not None:
                    self._weights(headed=True)
                    self._accumulate(headed=True)
                self._stores(headed=True)
                self.add("pass")

    def _any_headed(self) -> bool:
        return self.t.heads > 1

    # ------------------------------------------------------------------ functions

    def _row(self) -> None:
        names = ", ".join(self.names)
        with self.function(f"add_elements(acc, kept, row, begin, end, {names})"):
            self._row_registers()
            with self.block("for e in range(begin, end):"):
                self._element()
                self.add("pass")

    def _finish(self) -> None:
        names = ", ".join(self.names)
        with self.function(f"finish(acc, row, empty, {names})"):
            for reduction, offset in zip(self.t.reductions, self.layout.sums, strict=True):
                table = self.t.outputs[reduction.table]
                width = table.heads * table.dim
                state = self.layout.states.get(logit_of(reduction), 0)
                heads = self.t.code[logit_of(reduction)].heads if logit_of(reduction) >= 0 else 1
                h = "h" if heads > 1 else "0"
                with self.block(f"for h in range({table.heads}):"):
                    if reduction.how == "lse":
                        self.add(f"top = get(acc, {state} + {h})")
                        self.add(f"weight = get(acc, {state + heads} + {h})")
                        self.add("found = -INF if weight == ZERO else top + math.log(weight)")
                        self.add(f"put(out{reduction.table}, row * {width} + h, found)")
                        continue
                    with self.block(f"for k in range({table.dim}):"):
                        self.add(f"at = h * {table.dim} + k")
                        self.add(f"found = get(acc, {offset} + at)")
                        if reduction.how == "softmax":
                            weight = f"get(acc, {state + heads} + {h})"
                            self.add(f"found = ZERO if empty else found / {weight}")
                        self.add(f"put(out{reduction.table}, row * {width} + at, found)")
            self.add("pass")

    def _forward(self) -> None:
        names, total = ", ".join(self.names), self.layout.total
        stride = buffer_size(self.t)
        with self.function("forward(block, address)", inline=False):
            self._read_arguments()
            self.add("first, last = get(first_rows, block), get(first_rows, block + 1)")
            self.add("start, stop = get(first_elements, block), get(first_elements, block + 1)")
            self.add("put(slot_row, 2 * block, -1)")
            self.add("put(slot_row, 2 * block + 1, -1)")
            self.add("slot = 2 * block")
            self.add(f"kept = shift(buffers, block * {stride} + {total})")
            with self.block("for row in range(first, min(last + 1, rows)):"):
                self.add("begin, end = np.int64(get(indptr, row)), np.int64(get(indptr, row + 1))")
                self.add("whole = (row > first or start == begin) and row < last")
                self.add("low, high = max(begin, start), min(end, stop)")
                with self.block("if row == last and low >= high:"):
                    self.add("break")
                self.add(f"acc = shift(buffers, block * {stride})")
                with self.block("if not whole:"):
                    self.add(f"acc = shift(slots, slot * {total})")
                    self.add("put(slot_row, slot, row)")
                    self.add("slot += 1")
                self.add("clear(acc)")
                self.add(f"add_elements(acc, kept, row, low, high, {names})")
                with self.block("if whole:"):
                    self.add(f"finish(acc, row, begin == end, {names})")

    def _merge(self) -> None:
        names, total = ", ".join(self.names), self.layout.total
        with self.function("combine(acc, other)"):
            self._combine()
        with self.function("merge(block, address)", inline=False):
            self._read_arguments()
            self.add("before = np.int64(-1)")
            self.add("acc = slots")
            with self.block("for slot in range(2 * blocks):"):
                self.add("row = get(slot_row, slot)")
                with self.block("if row < 0:"):
                    self.add("continue")
                with self.block("if row == before:"):
                    self.add(f"combine(acc, shift(slots, slot * {total}))")
                    self.add("continue")
                with self.block("if before >= 0:"):
                    self.add(f"finish(acc, before, False, {names})")
                self.add(f"acc = shift(slots, slot * {total})")
                self.add("before = row")
            with self.block("if before >= 0:"):
                self.add(f"finish(acc, before, False, {names})")

    def _combine(self) -> None:
        """Add the accumulators of a later part of a row."""
        for logit, at in self.layout.states.items():
            heads = self.t.code[logit].heads
            with self.block(f"for h in range({heads}):"):
                self.add(f"a, b = get(acc, {at} + h), get(other, {at} + h)")
                self.add("base = base_of(a if a > b else b)")
                self.add("old, new = math.exp(a - base), math.exp(b - base)")
                self.add(f"put(acc, {at} + h, a if a > b else b)")
                place = f"{at + heads} + h"
                self.add(f"weight = get(acc, {place}) * old + get(other, {place}) * new")
                self.add(f"put(acc, {place}, weight)")
                self._combine_weighted(logit, heads)
        for reduction, offset in zip(self.t.reductions, self.layout.sums, strict=True):
            table = self.t.outputs[reduction.table]
            a, b = "get(acc, at)", "get(other, at)"
            new = {"sum": f"{a} + {b}", "max": f"larger({a}, {b})", "min": f"smaller({a}, {b})"}
            if reduction.how in new:
                with self.block(f"for k in range({table.heads * table.dim}):"):
                    self.add(f"at = {offset} + k")
                    self.add(f"put(acc, at, {new[reduction.how]})")
        self.add("pass")

    def _combine_weighted(self, logit: int, heads: int) -> None:
        """The sums that a logit weights, of its head, or of all heads where it has one."""
        for reduction, offset in zip(self.t.reductions, self.layout.sums, strict=True):
            if reduction.how != "softmax" or reduction.logit != logit:
                continue
            table = self.t.outputs[reduction.table]
            count = table.dim if heads > 1 else table.heads * table.dim
            head = f" + h * {table.dim}" if heads > 1 else ""
            with self.block(f"for k in range({count}):"):
                self.add(f"at = {offset}{head} + k")
                self.add("put(acc, at, get(acc, at) * old + get(other, at) * new)")

    def _map(self) -> None:
        with self.function("forward(block, address)", inline=False):
            self._read_arguments()
            self.add("begin, end = elements * block // blocks, elements * (block + 1) // blocks")
            self.add("row = np.int64(0)")
            self.add("kept = buffers")
            self._row_registers()
            with self.block("for e in range(begin, end):"):
                self._element()
                self.add("pass")


class _Indented:
    def __init__(self, writer: _Writer) -> None:
        self.writer = writer

    def __enter__(self) -> None:
        self.writer.indent += 1

    def __exit__(self, *_: object) -> None:
        self.writer.indent -= 1

"""What a row gathers in Numba: accumulators, softmax statistics, results, and merged parts."""

from __future__ import annotations

from collections.abc import Iterator

from gnn_backend.ir.accumulators import Accumulators, logit_of
from gnn_backend.ir.emit_numba_registers import Registers, Variant
from gnn_backend.ir.traversal import Reduction, Table, Traversal

_STARTS = {"max": "-INF", "min": "INF"}  # of accumulators, where it is not 0
_EXTREMES = {"max": "larger", "min": "smaller"}


class Rows(Registers):
    """Text that reduces elements into rows.

    Attributes
    ----------
    layout : Accumulators
    """

    def __init__(self, traversal: Traversal, variant: Variant) -> None:
        super().__init__(traversal, variant)
        self.layout = Accumulators(traversal)

    def _placed(self) -> Iterator[tuple[Reduction, int, Table]]:
        """Reductions, where their accumulators begin, and what they leave."""
        for reduction, offset in zip(self.t.reductions, self.layout.sums, strict=True):
            yield reduction, offset, self.t.outputs[reduction.table]

    # ------------------------------------------------------------------ elements

    def element(self) -> None:
        """The body of the loop over elements."""
        self.element_registers()
        self._element_scope(headed=False)
        if self.t.heads > 1:
            with self.block(f"for h in range({self.t.heads}):"):
                self.head_registers()
                self._element_scope(headed=True)
                self.add("pass")

    def _element_scope(self, headed: bool) -> None:
        if self.t.rows is not None:
            self._weights(headed)
            self._accumulate(headed)
        self._stores(headed)

    def _weights(self, headed: bool) -> None:
        """Softmax weights w and factors f of what was summed, of the logits of one scope."""
        for logit, at in self.layout.states.items():
            heads = self.t.code[logit].heads
            if (heads > 1) != headed:
                continue
            h = " + h" if headed else ""
            self.add(f"x{logit} = {self.expression(logit)}")
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
        for reduction, offset, table in self._placed():
            if (table.heads > 1) != headed or reduction.how == "lse":
                continue
            value, logit = self.expression(reduction.value), reduction.logit
            if reduction.how == "softmax":
                new = f"get(acc, at) * f{logit} + w{logit} * {value}"
            else:
                new = _added(reduction.how, "get(acc, at)", value)
            head = " + h" if table.heads > 1 else ""
            head += f" * {table.dim}" if table.heads > 1 and table.dim > 1 else ""
            self._columns(table, f"{offset}{head}", f"put(acc, at, {new})")

    def _stores(self, headed: bool) -> None:
        for store in self.t.stores:
            table = self.t.outputs[store.table]
            if (table.heads > 1) != headed:
                continue
            row = f"e_{self.t.elements.name.lower()} * {table.heads * table.dim}"
            head = f" + h * {table.dim}" if table.heads > 1 else ""
            value = self.expression(store.value)
            self._columns(table, f"{row}{head}", f"put(out{store.table}, at, {value})")

    def _columns(self, table: Table, begin: str, line: str) -> None:
        """A line for each column of a head; ``at`` is its place, the first at ``begin``."""
        if table.dim > 1:
            with self.block(f"for k in range({table.dim}):"):
                self.add(f"at = {begin} + k")
                self.add(line)
        else:
            self.add(f"at = {begin}")
            self.add(line)

    # ------------------------------------------------------------------ rows

    def clear(self) -> None:
        """The function that makes the accumulators of no element."""
        with self.function("clear(acc)"):
            for reduction, offset, table in self._placed():
                if reduction.how != "lse":
                    start = _STARTS.get(reduction.how, "ZERO")
                    with self.block(f"for k in range({table.heads * table.dim}):"):
                        self.add(f"put(acc, {offset} + k, {start})")
            for logit, at in self.layout.states.items():
                heads = self.t.code[logit].heads
                with self.block(f"for h in range({heads}):"):
                    self.add(f"put(acc, {at} + h, -INF)")
                    self.add(f"put(acc, {at + heads} + h, ZERO)")

    def finish(self, names: str) -> None:
        """The function that writes a row's results."""
        with self.function(f"finish(acc, row, empty, {names})"):
            for reduction, offset, table in self._placed():
                with self.block(f"for h in range({table.heads}):"):
                    self._finish_head(reduction, offset, table)
            self.add("pass")

    def _finish_head(self, reduction: Reduction, offset: int, table: Table) -> None:
        width, out = table.heads * table.dim, f"out{reduction.table}"
        logit = logit_of(reduction)
        state = self.layout.states.get(logit, 0)
        heads = self.t.code[logit].heads if logit >= 0 else 1
        h = "h" if heads > 1 else "0"
        if reduction.how == "lse":
            self.add(f"top = get(acc, {state} + {h})")
            self.add(f"weight = get(acc, {state + heads} + {h})")
            self.add("found = -INF if weight == ZERO else top + math.log(weight)")
            self.add(f"put({out}, row * {width} + h, found)")
            return
        with self.block(f"for k in range({table.dim}):"):
            self.add(f"at = h * {table.dim} + k")
            self.add(f"found = get(acc, {offset} + at)")
            if reduction.how == "softmax":
                weight = f"get(acc, {state + heads} + {h})"
                self.add(f"found = ZERO if empty else found / {weight}")
            self.add(f"put({out}, row * {width} + at, found)")

    def combine(self) -> None:
        """The function that adds the accumulators of a later part of a row."""
        with self.function("combine(acc, other)"):
            for logit, at in self.layout.states.items():
                heads = self.t.code[logit].heads
                with self.block(f"for h in range({heads}):"):
                    self._combine_state(at, heads)
                    self._combine_weighted(logit, heads)
            for reduction, offset, table in self._placed():
                if reduction.how in ("sum", *_EXTREMES):
                    with self.block(f"for k in range({table.heads * table.dim}):"):
                        new = _added(reduction.how, "get(acc, at)", "get(other, at)")
                        self.add(f"at = {offset} + k")
                        self.add(f"put(acc, at, {new})")
            self.add("pass")

    def _combine_state(self, at: int, heads: int) -> None:
        self.add(f"a, b = get(acc, {at} + h), get(other, {at} + h)")
        self.add("base = base_of(a if a > b else b)")
        self.add("old, new = math.exp(a - base), math.exp(b - base)")
        self.add(f"put(acc, {at} + h, a if a > b else b)")
        place = f"{at + heads} + h"
        self.add(f"weight = get(acc, {place}) * old + get(other, {place}) * new")
        self.add(f"put(acc, {place}, weight)")

    def _combine_weighted(self, logit: int, heads: int) -> None:
        """The sums that a logit weights, of its head, or of all heads where it has one."""
        for reduction, offset, table in self._placed():
            if reduction.how != "softmax" or reduction.logit != logit:
                continue
            count = table.dim if heads > 1 else table.heads * table.dim
            head = f" + h * {table.dim}" if heads > 1 else ""
            with self.block(f"for k in range({count}):"):
                self.add(f"at = {offset}{head} + k")
                self.add("put(acc, at, get(acc, at) * old + get(other, at) * new)")


def _added(how: str, acc: str, value: str) -> str:
    """A sum or an extreme with one more value."""
    return f"{acc} + {value}" if how == "sum" else f"{_EXTREMES[how]}({acc}, {value})"

"""What a row gathers in CUDA: accumulators, softmax statistics, and where they are written."""

from __future__ import annotations

from gnn_backend.ir.accumulators import Accumulators
from gnn_backend.ir.emit_cuda_registers import Registers
from gnn_backend.ir.traversal import Reduction, Table, Traversal


def start_of(reduction: Reduction) -> str:
    """What an accumulator begins with."""
    starts = {"max": "negative_infinity()", "min": "-negative_infinity()"}
    return starts.get(reduction.how, "0.f")


def added(reduction: Reduction, acc: str, value: str) -> str:
    """The statement that adds a value to an accumulator."""
    if reduction.how == "sum":
        return f"{acc} += {value};"
    if reduction.how == "softmax":
        return f"{acc} = fmaf(w{reduction.logit}, {value}, {acc});"
    function = "larger" if reduction.how == "max" else "smaller"
    return f"{acc} = {function}({acc}, {value});"


class Rows(Registers):
    """Text that reduces elements into rows.

    Attributes
    ----------
    places : Accumulators
    """

    def __init__(self, traversal: Traversal) -> None:
        super().__init__(traversal)
        self.places = Accumulators(traversal)

    def kept(self) -> list[tuple[int, Reduction, Table]]:
        """Reductions with an accumulator, by number, and what they leave."""
        found = enumerate(self.t.reductions)
        return [(n, r, self.t.outputs[r.table]) for n, r in found if r.how != "lse"]

    def clear(self) -> None:
        for n, reduction, table in self.kept():
            start = start_of(reduction)
            if table.dim > 1:
                self.add(f"float acc{n}[K];")
                with self.each("i", "K"):
                    self.add(f"acc{n}[i] = {start};")
            else:
                self.add(f"float acc{n} = {start};")
        for logit in self.places.states:
            self.add(f"Softmax state{logit};")
            self.add(f"state{logit}.clear();")

    def raise_maxima(self) -> None:
        """Raise the maxima to those of the elements in flight, and scale what was summed."""
        for logit in self.places.states:
            self.add(f"float top{logit} = lowest<float>();")
            with self.each("u", "U"):
                value = self.expression(logit)
                self.add(f"if (live[u]) top{logit} = fmaxf(top{logit}, {value});")
            self.add(f"const float factor{logit} = state{logit}.raise(top{logit});")
            for n, reduction, table in self.kept():
                if reduction.how != "softmax" or reduction.logit != logit:
                    continue
                if table.dim > 1:
                    with self.each("i", "K"):
                        self.add(f"acc{n}[i] *= factor{logit};")
                else:
                    self.add(f"acc{n} *= factor{logit};")

    def accumulate(self) -> None:
        """Add the elements in flight, and write what is stored of each."""
        wanted = [r.value for _, r, _ in self.kept()] + [s.value for s in self.t.stores]
        needed = sorted({c for v in wanted for c in self.columns_in(v)})
        with self.each("u", "U"):
            self.add("if (!live[u]) continue;")
            self.unpack(needed)
            for logit in self.places.states:
                self.add(f"const float w{logit} = state{logit}.weigh({self.expression(logit)});")
            for n, reduction, table in self.kept():
                value = self.expression(reduction.value)
                if table.dim > 1:
                    with self.each("i", "K"):
                        self.add(added(reduction, f"acc{n}[i]", value))
                else:
                    self.add(added(reduction, f"acc{n}", value))
            for store in self.t.stores:
                self._store_element(store.value, store.table)

    # ------------------------------------------------------------------ writing

    def _store_element(self, value: int, number: int) -> None:
        table = self.t.outputs[number]
        row = f"e_{self.t.elements.name.lower()}[u]"
        if table.dim == 1:
            self._store_number(table, number, row, self.expression(value))
            return
        with self.block(""):
            self.add("float y[K];")
            with self.each("i", "K"):
                self.add(f"y[i] = {self.expression(value)};")
            self._store_columns(table, number, row, "y")

    def _store_columns(self, table: Table, number: int, row: str, values: str) -> None:
        self.add(f"{self._once(table)}store_row<S>(args.out{number}, {self.lane(table)}, {row}, "
                 f"{values});")  # fmt: skip

    def _once(self, table: Table) -> str:
        """One head's lanes alone write what all have."""
        return "if (at.head == 0) " if self.lane(table) == "one" else ""

    def _store_number(self, table: Table, number: int, row: str, value: str) -> None:
        at = self.place(table, row)
        self.add(f"if ({_one_lane(table.heads)}) put_number<T>(args.out{number}, {at}, {value});")

    def finish(self) -> None:
        """Write the row, or its part into the slot."""
        self.add("if (!exists) continue;")
        with self.block("if (task.slot >= 0)"):
            for n, _, table in self.kept():
                self._store_part(n, table)
            for logit, at in self.places.states.items():
                self._store_state(logit, at)
            self.add("continue;")
        for n, reduction in enumerate(self.t.reductions):
            self._finish(n, reduction, self.t.outputs[reduction.table])

    def _finish(self, n: int, reduction: Reduction, table: Table) -> None:
        softmax, state = reduction.how == "softmax", f"state{reduction.logit}"
        if reduction.how == "lse":
            self._store_number(table, reduction.table, "row", f"state{reduction.value}.lse()")
        elif table.dim > 1:
            if softmax:
                with self.each("i", "K"):
                    self.add(f"acc{n}[i] = count > 0 ? acc{n}[i] / {state}.sum : 0.f;")
            self._store_columns(table, reduction.table, "row", f"acc{n}")
        else:
            value = f"count > 0 ? acc{n} / {state}.sum : 0.f" if softmax else f"acc{n}"
            self._store_number(table, reduction.table, "row", value)

    def _store_part(self, n: int, table: Table) -> None:
        offset = f"args.partial + {self.places.sums[n]} * args.slots"
        if table.dim > 1:
            lane = self.lane(table)
            self.add(f"{self._once(table)}store_partial<S>({offset}, {lane}, task.slot, acc{n});")
            return
        at = self.place(table, "task.slot")
        self.add(f"if ({_one_lane(table.heads)}) ({offset})[{at}] = acc{n};")

    def _store_state(self, logit: int, at: int) -> None:
        heads = self.t.code[logit].heads
        place = f"task.slot * (i64){heads}" + (" + at.head" if heads > 1 else "")
        with self.block(f"if ({_one_lane(heads)})"):
            self.add(f"args.partial[{at} * args.slots + {place}] = state{logit}.top;")
            self.add(f"args.partial[{at + heads} * args.slots + {place}] = state{logit}.sum;")


def _one_lane(heads: int) -> str:
    """Whether a lane is the one that writes a number of a head, or of all."""
    return "at.within == 0" + ("" if heads > 1 else " && at.head == 0")

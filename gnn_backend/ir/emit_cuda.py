"""The CUDA source of a traversal; the emulator compiles the same text.

Registers without columns are arrays over the elements in flight, those with columns expressions of
a lane's value i, written out where they are used: what was loaded is unpacked once an element.
"""

from __future__ import annotations

from gnn_backend.ir.accumulators import Accumulators
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.traversal import Reduction, Step, Table, Traversal
from gnn_backend.runtime.selection import Shape

_REGISTERS = 64  # of a lane, for rows in flight
_MOST = 8  # elements in flight
_OPERATORS = {
    "neg": "(-{0})", "exp": "exponential({0})", "log": "logarithm({0})", "sqrt": "sqrtf({0})",
    "reciprocal": "(1.f / {0})", "tanh": "tanh_of({0})", "sigmoid": "sigmoid_of({0})",
    "relu": "relu_of({0})", "leaky_relu": "leaky_of({0}, {value})",
    "slope": "slope_of({0}, {value})", "add": "({0} + {1})", "sub": "({0} - {1})",
    "mul": "({0} * {1})", "div": "({0} / {1})", "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})", "equal": "flag({0} == {1})", "greater": "flag({0} > {1})",
}  # fmt: skip
#: Fields of the arguments before the tables, 8 bytes each.
FIELDS = ("tasks", "num_tasks", "heads", "dim", "partial", "slots", "heavy_rows", "heavy_ptr",
          "num_heavy")  # fmt: skip


def arguments(traversal: Traversal) -> list[tuple[str, Domain | int | None]]:
    """Every field of ``Args``, in order: its name, and what it is of."""
    found: list[tuple[str, Domain | int | None]] = [(name, None) for name in FIELDS]
    found += [(f"by_{d.name.lower()}", d) for d in traversal.indices()]
    found += [(f"row_by_{d.name.lower()}", d) for d in traversal.row_indices()]
    found += [(f"in{n}", n) for n in range(len(traversal.inputs))]
    found += [(f"out{n}", n) for n in range(len(traversal.outputs))]
    return found


def in_flight(traversal: Traversal, shape: Shape) -> int:
    """Elements that a lane has in flight: as many as leave enough registers."""
    rows = sum(1 for s in traversal.code if s.op == "load" and not s.per_row and s.dim > 1)
    most = _MOST if shape.values <= 8 else _MOST // 2
    return 1 << (max(1, min(most, _REGISTERS // max(1, rows * shape.values))).bit_length() - 1)


def source(traversal: Traversal, name: str, dtype: str, shape: Shape, block: int) -> str:
    """The text of the unit: entries ``name`` and, where rows are reduced, ``name_merge``.

    Parameters
    ----------
    traversal : Traversal
    name : str
    dtype : str
        The storage type in CUDA, such as ``gnnb::bf16``.
    shape : Shape
        Lane layout of rows [heads, dim].
    block : int
        Threads of a block.
    """
    flags = f"{str(shape.vector).lower()}, {str(shape.full).lower()}"
    layout = f"gnnb::Shape<{dtype}, {shape.lanes}, {shape.heads}, {shape.values}, {flags}>"
    listing = [f"// {line}" for line in traversal.listing()]
    head = [*listing, '#include "program.cuh"', f"using Layout = {layout};", "namespace gnnb {"]
    body = _Writer(traversal, in_flight(traversal, shape)).text()
    entries = [f"GNNB_ENTRY({name}, gnnb::Args, {block}, (gnnb::program<Layout>(args)))"]
    if traversal.rows is not None:
        entries.append(f"GNNB_ENTRY({name}_merge, gnnb::Args, 256, (gnnb::merge<Layout>(args)))")
    return "\n".join([*head, *body, "}  // namespace gnnb", *entries]) + "\n"


class _Writer:
    def __init__(self, traversal: Traversal, flight: int) -> None:
        self.t, self.flight = traversal, flight
        self.places = Accumulators(traversal)
        self.lines: list[str] = []
        self.indent = 0

    # ------------------------------------------------------------------ text

    def add(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def open(self, line: str) -> None:
        self.add(line + " {")
        self.indent += 1

    def close(self, end: str = "}") -> None:
        self.indent -= 1
        self.add(end)

    def each(self, variable: str, count: str) -> None:
        self.add("#pragma unroll")
        self.open(f"for (int {variable} = 0; {variable} < {count}; {variable}++)")

    def text(self) -> list[str]:
        self._arguments()
        self._program()
        if self.t.rows is not None:
            self._merge()
        return self.lines

    def _arguments(self) -> None:
        self.open("struct Args")
        for name, what in arguments(self.t):
            kind = "const int*"
            if name in ("num_tasks", "heads", "dim", "slots", "num_heavy"):
                kind = "i64"
            elif name == "tasks":
                kind = "const int4*"
            elif name == "partial":
                kind = "float*"
            elif isinstance(what, int):
                kind = "const void*" if name.startswith("in") else "void*"
            self.add(f"{kind} {name};")
        self.close("};")

    # ------------------------------------------------------------------ registers

    def literal(self, value: float) -> str:
        if value != value or value in (float("inf"), float("-inf")):
            sign = "-" if value == float("-inf") else ""
            return f"({sign}__int_as_float(0x{'7f800000' if value == value else '7fc00000'}))"
        return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.f"

    def scalar(self, number: int, element: str) -> str:
        step = self.t.code[number]
        if step.op == "const":
            return self.literal(step.value)
        return f"s{number}" if step.per_row else f"s{number}[{element}]"

    def expression(self, number: int, element: str = "u") -> str:
        """A register, of an element in flight, and where it has columns of a lane's value i."""
        step = self.t.code[number]
        if step.dim == 1 or step.op == "const":
            return self.scalar(number, element)
        if step.op == "load":
            return f"x{number}[i]"
        return self._operator(step, element)

    def _operator(self, step: Step, element: str) -> str:
        args = [self.expression(a, element) for a in step.args]
        return _OPERATORS[step.op].format(*args, value=self.literal(step.value))

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

    def _row_of(self, table: Table, element: str) -> str:
        if table.domain is Domain.PARAM:
            return "0"
        name = table.domain.name.lower()
        if self.t.by_row(table):
            return "row" if table.domain is self.t.rows else f"row_{name}"
        return f"e_{name}[{element}]"

    def _place(self, table: Table, row: str) -> str:
        """Where the number of a table without columns is."""
        return f"(i64){row} * args.heads + at.head" if table.heads > 1 else f"(i64){row}"

    def _lane(self, table: Table) -> str:
        return "at" if table.heads > 1 or self.t.heads == 1 else "one"

    def _load_columns(self, number: int, step: Step, element: str, live: str) -> None:
        table = self.t.inputs[step.table]
        row = self._row_of(table, element)
        target = f"r{number}" if step.per_row else f"r{number}[{element}]"
        self.add(f"{target}.load(args.in{step.table}, {self._lane(table)}, {row}, {live});")

    def _compute(self, per_row: bool, element: str, live: str) -> None:
        """Registers without columns, in order: loads, operators and dot products."""
        for number, step in enumerate(self.t.code):
            if step.per_row != per_row or step.dim > 1 or step.op == "const":
                continue
            target = f"float s{number}" if per_row else f"s{number}[{element}]"
            if step.op == "load":
                table = self.t.inputs[step.table]
                at = self._place(table, self._row_of(table, element))
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
        self.each("i", "K")
        self.add(f"if (holds_value(at, i)) p{number} = fmaf({a}, {b}, p{number});")
        self.close()
        self.add(f"{target} = head_sum<S>(p{number});")

    # ------------------------------------------------------------------ program

    def _program(self) -> None:
        self.add("template <class S> __device__ __forceinline__ void program(const Args& args) {")
        self.indent += 1
        self.add("using T = typename S::T;")
        self.add(f"constexpr int K = S::VALUES, U = {self.flight};")
        self.add("const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;")
        self.add("const int blocks = (int)(args.heads / S::HEADS);")
        self.add("#pragma unroll 1")
        self.open("for (int block = blockIdx.y; block < blocks; block += gridDim.y)")
        self.add("const Lane<S> at(args.heads, args.dim, block);")
        self.add("const Lane<S> one = shared_by_heads(at);")
        self.add("const i64 number = warp * S::TASKS + at.group;")
        if self.t.rows is None:
            self.add("const int row = 0;")
            self.add("const i64 begin = number * U;")
            self.add("const i64 left = args.num_tasks - begin;")
            self.add("const int count = (int)(left < 0 ? 0 : left < U ? left : U);")
        else:
            self.add("const bool exists = number < args.num_tasks;")
            self.add("const Task task = group_task<S>(args.tasks, args.num_tasks, number);")
            self.add("const int row = task.row, count = task.count;")
            self.add("const i64 begin = task.begin;")
            self.add("const int longest = longest_task<S>(count);")
        self._row_registers()
        self._clear()
        if self.t.rows is None:
            self.add("constexpr int first = 0;")
            self._elements()
        else:
            self.add("#pragma unroll 1")
            self.open("for (int first = 0; first < longest; first += U)")
            self._elements()
            self.close()
            self._finish()
        self.close()
        self.close()

    def _row_registers(self) -> None:
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

    def _elements(self) -> None:
        """U elements: their indices, their rows, then what is computed of them."""
        loads = [(n, s) for n, s in enumerate(self.t.code)
                 if s.op == "load" and not s.per_row and s.dim > 1]  # fmt: skip
        scalars = [n for n, s in enumerate(self.t.code)
                   if not s.per_row and s.dim == 1 and s.op != "const"]  # fmt: skip
        for domain in self.t.indices():
            self.add(f"int e_{domain.name.lower()}[U];")
        self.add("bool live[U];")
        self.each("u", "U")
        self.add("live[u] = first + u < count;")
        self.add("const i64 place = begin + first + u;")
        for domain in self.t.indices():
            name = domain.name.lower()
            found = f"args.by_{name} ? __ldg(args.by_{name} + place) : (int)place"
            self.add(f"e_{name}[u] = live[u] ? ({found}) : 0;")
        self.close()
        for number, _ in loads:
            self.add(f"Raw<S> r{number}[U];")
        if scalars:
            self.add("float " + ", ".join(f"s{n}[U]" for n in scalars) + ";")
        if loads:
            self.each("u", "U")
            for number, step in loads:
                self._load_columns(number, step, "u", "live[u]")
            self.close()
        if scalars:
            self.each("u", "U")
            needed = {c for n in scalars if self.t.code[n].op == "dot"
                      for a in self.t.code[n].args for c in self.columns_in(a)}  # fmt: skip
            self.unpack(sorted(needed))
            self._compute(False, "u", "live[u]")
            self.close()
        self._raise()
        self._accumulate()

    # ------------------------------------------------------------------ accumulators

    def _clear(self) -> None:
        for n, reduction in enumerate(self.t.reductions):
            if reduction.how == "lse":
                continue
            start = {"max": "negative_infinity()", "min": "-negative_infinity()"}.get(
                reduction.how, "0.f"
            )
            if self.t.outputs[reduction.table].dim > 1:
                self.add(f"float acc{n}[K];")
                self.each("i", "K")
                self.add(f"acc{n}[i] = {start};")
                self.close()
            else:
                self.add(f"float acc{n} = {start};")
        for logit in self.places.states:
            self.add(f"Softmax state{logit};")
            self.add(f"state{logit}.clear();")

    def _raise(self) -> None:
        """Raise the maxima to those of the elements in flight, and scale what was summed."""
        for logit in self.places.states:
            self.add(f"float top{logit} = lowest<float>();")
            self.each("u", "U")
            value = self.expression(logit)
            self.add(f"if (live[u]) top{logit} = fmaxf(top{logit}, {value});")
            self.close()
            self.add(f"const float factor{logit} = state{logit}.raise(top{logit});")
            for n, reduction in enumerate(self.t.reductions):
                if reduction.how != "softmax" or reduction.logit != logit:
                    continue
                if self.t.outputs[reduction.table].dim > 1:
                    self.each("i", "K")
                    self.add(f"acc{n}[i] *= factor{logit};")
                    self.close()
                else:
                    self.add(f"acc{n} *= factor{logit};")

    def _accumulate(self) -> None:
        wanted = [r.value for r in self.t.reductions if r.how != "lse"]
        wanted += [s.value for s in self.t.stores]
        needed = sorted({c for v in wanted for c in self.columns_in(v)})
        self.each("u", "U")
        self.add("if (!live[u]) continue;")
        self.unpack(needed)
        for logit in self.places.states:
            self.add(f"const float w{logit} = state{logit}.weigh({self.expression(logit)});")
        for n, reduction in enumerate(self.t.reductions):
            if reduction.how == "lse":
                continue
            value = self.expression(reduction.value)
            if self.t.outputs[reduction.table].dim > 1:
                self.each("i", "K")
                self.add(self._added(reduction, f"acc{n}[i]", value))
                self.close()
            else:
                self.add(self._added(reduction, f"acc{n}", value))
        for store in self.t.stores:
            self._store_element(store.value, store.table)
        self.close()

    def _added(self, reduction: Reduction, acc: str, value: str) -> str:
        if reduction.how == "sum":
            return f"{acc} += {value};"
        if reduction.how == "softmax":
            return f"{acc} = fmaf(w{reduction.logit}, {value}, {acc});"
        function = "larger" if reduction.how == "max" else "smaller"
        return f"{acc} = {function}({acc}, {value});"

    def _store_element(self, value: int, number: int) -> None:
        table = self.t.outputs[number]
        row = f"e_{self.t.elements.name.lower()}[u]"
        if table.dim > 1:
            self.open("")
            self.add("float y[K];")
            self.each("i", "K")
            self.add(f"y[i] = {self.expression(value)};")
            self.close()
            self._store_columns(table, number, row, "y")
            self.close()
        else:
            self._store_number(table, number, row, self.expression(value))

    def _store_columns(self, table: Table, number: int, row: str, values: str) -> None:
        lane = self._lane(table)
        guard = "if (at.head == 0) " if lane == "one" else ""
        self.add(f"{guard}store_row<S>(args.out{number}, {lane}, {row}, {values});")

    def _store_number(self, table: Table, number: int, row: str, value: str) -> None:
        guard = "at.within == 0" + ("" if table.heads > 1 else " && at.head == 0")
        self.add(
            f"if ({guard}) put_number<T>(args.out{number}, {self._place(table, row)}, {value});"
        )

    def _finish(self) -> None:
        """Write the row, or its part into the slot."""
        self.add("if (!exists) continue;")
        self.open("if (task.slot >= 0)")
        for n, reduction in enumerate(self.t.reductions):
            if reduction.how != "lse":
                self._store_part(n, self.t.outputs[reduction.table])
        for logit, at in self.places.states.items():
            heads = self.t.code[logit].heads
            guard = "at.within == 0" + ("" if heads > 1 else " && at.head == 0")
            place = f"task.slot * (i64){heads}" + (" + at.head" if heads > 1 else "")
            self.open(f"if ({guard})")
            self.add(f"args.partial[{at} * args.slots + {place}] = state{logit}.top;")
            self.add(f"args.partial[{at + heads} * args.slots + {place}] = state{logit}.sum;")
            self.close()
        self.add("continue;")
        self.close()
        for n, reduction in enumerate(self.t.reductions):
            table = self.t.outputs[reduction.table]
            if reduction.how == "lse":
                self._store_number(table, reduction.table, "row", f"state{reduction.value}.lse()")
            elif table.dim > 1:
                if reduction.how == "softmax":
                    self.each("i", "K")
                    self.add(
                        f"acc{n}[i] = count > 0 ? acc{n}[i] / state{reduction.logit}.sum : 0.f;"
                    )
                    self.close()
                self._store_columns(table, reduction.table, "row", f"acc{n}")
            else:
                value = f"acc{n}"
                if reduction.how == "softmax":
                    value = f"count > 0 ? acc{n} / state{reduction.logit}.sum : 0.f"
                self._store_number(table, reduction.table, "row", value)

    def _store_part(self, n: int, table: Table) -> None:
        offset = f"args.partial + {self.places.sums[n]} * args.slots"
        if table.dim > 1:
            lane = self._lane(table)
            guard = "if (at.head == 0) " if lane == "one" else ""
            self.add(f"{guard}store_partial<S>({offset}, {lane}, task.slot, acc{n});")
            return
        guard = "at.within == 0" + ("" if table.heads > 1 else " && at.head == 0")
        self.add(f"if ({guard}) ({offset})[{self._place(table, 'task.slot')}] = acc{n};")

    # ------------------------------------------------------------------ merge

    def _merge(self) -> None:
        """A lane owns a column of [heads, dim]; what has fewer belongs to the first that has it."""
        self.open("struct Merged")
        kept = [n for n, r in enumerate(self.t.reductions) if r.how != "lse"]
        for n in kept:
            self.add(f"float acc{n};")
        for logit in self.places.states:
            self.add(f"Softmax state{logit};")
        self.open("__device__ __forceinline__ void clear()")
        for n in kept:
            how = self.t.reductions[n].how
            start = {"max": "negative_infinity()", "min": "-negative_infinity()"}.get(how, "0.f")
            self.add(f"acc{n} = {start};")
        for logit in self.places.states:
            self.add(f"state{logit}.clear();")
        self.close()
        self.open("__device__ __forceinline__ void merge(Merged other)")
        for logit in self.places.states:
            self.add(f"const float old{logit} = state{logit}.raise(other.state{logit}.top);")
            base = f"state{logit}.base()"
            self.add(f"const float new{logit} = exponential(other.state{logit}.top - {base});")
            self.add(
                f"state{logit}.sum = fmaf(other.state{logit}.sum, new{logit}, state{logit}.sum);"
            )
        for n in kept:
            reduction = self.t.reductions[n]
            if reduction.how == "softmax":
                g = reduction.logit
                self.add(f"acc{n} = acc{n} * old{g} + other.acc{n} * new{g};")
            else:
                self.add(self._added(reduction, f"acc{n}", f"other.acc{n}"))
        self.close()
        self.close("};")
        self._merge_kernel(kept)

    def _merge_kernel(self, kept: list[int]) -> None:
        self.add("template <class S> __device__ __forceinline__ void merge(const Args& args) {")
        self.indent += 1
        self.add("using T = typename S::T;")
        self.add("const i64 width = args.heads * args.dim;")
        self.add("const int lane = threadIdx.x & (WARP - 1);")
        self.open("for (i64 tile = blockIdx.y; tile * WARP < width; tile += gridDim.y)")
        self.add("const i64 column = tile * WARP + lane;")
        self.add("const bool inside = column < width;")
        self.add("const i64 head = column / args.dim, within = column % args.dim;")
        self.add("merge_split_rows<Merged>(")
        self.indent += 1
        self.add("args.heavy_ptr, args.num_heavy, blockIdx.x, gridDim.x, MERGE_ALONE,")
        self.add("[&](int begin, int end) {")
        self.indent += 1
        self.add("Merged all;")
        self.add("all.clear();")
        self.open("for (int slot = begin; inside && slot < end; slot++)")
        self.add("Merged part;")
        for n in kept:
            table = self.t.outputs[self.t.reductions[n].table]
            width = table.heads * table.dim
            at = f"{self.places.sums[n]} * args.slots + slot * (i64){width}{self._column(table)}"
            self.add(f"part.acc{n} = args.partial[{at}];")
        for logit, place in self.places.states.items():
            heads = self.t.code[logit].heads
            head = " + head" if heads > 1 else ""
            for field, extra in (("top", 0), ("sum", heads)):
                at = f"{place + extra} * args.slots + slot * (i64){heads}{head}"
                self.add(f"part.state{logit}.{field} = args.partial[{at}];")
        self.add("all.merge(part);")
        self.close()
        self.add("return all;")
        self.close("},")
        self.add("[&](const Merged& all, i64 which) {")
        self.indent += 1
        self.add("if (!inside) return;")
        self.add("const i64 row = args.heavy_rows[which];")
        for n, reduction in enumerate(self.t.reductions):
            table = self.t.outputs[reduction.table]
            value = f"all.acc{n}"
            if reduction.how == "lse":
                value = f"all.state{reduction.value}.lse()"
            elif reduction.how == "softmax":
                value += f" / all.state{reduction.logit}.sum"
            width = table.heads * table.dim
            at = f"row * {width}{self._column(table)}"
            self.add(
                f"{self._first(table)}put_number<T>(args.out{reduction.table}, {at}, {value});"
            )
        self.close("});")
        self.indent -= 1
        self.close()
        self.close()

    def _column(self, table: Table) -> str:
        """Where a lane's column is in a row of a table."""
        if table.heads > 1:
            return " + column" if table.dim > 1 or self.t.dim == 1 else " + head"
        return " + within" if table.dim > 1 else ""

    def _first(self, table: Table) -> str:
        """Which lane writes what several have."""
        conditions = []
        if table.dim == 1 and self.t.dim > 1:
            conditions.append("within == 0")
        if table.heads == 1 and self.t.heads > 1:
            conditions.append("head == 0")
        return f"if ({' && '.join(conditions)}) " if conditions else ""

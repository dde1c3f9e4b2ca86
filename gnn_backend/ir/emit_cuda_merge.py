"""The merge of rows that were cut into parts, in CUDA.

A lane owns a column of [heads, dim]; what has fewer belongs to the first that has it.
"""

from __future__ import annotations

from gnn_backend.ir.emit_cuda_rows import Rows, added, start_of
from gnn_backend.ir.traversal import Reduction, Table


class Merge(Rows):
    """Text of the struct of a lane's share of a row, and of the kernel that merges."""

    def write(self) -> None:
        """Add both."""
        with self.block("struct Merged", "};"):
            self._fields()
            with self.block("__device__ __forceinline__ void clear()"):
                for n, reduction, _ in self.kept():
                    self.add(f"acc{n} = {start_of(reduction)};")
                for logit in self.places.states:
                    self.add(f"state{logit}.clear();")
            with self.block("__device__ __forceinline__ void merge(Merged other)"):
                self._merge_states()
                for n, reduction, _ in self.kept():
                    self.add(_joined(n, reduction))
        self._kernel()

    def _fields(self) -> None:
        for n, _, _ in self.kept():
            self.add(f"float acc{n};")
        for logit in self.places.states:
            self.add(f"Softmax state{logit};")

    def _merge_states(self) -> None:
        for logit in self.places.states:
            state, other = f"state{logit}", f"other.state{logit}"
            self.add(f"const float old{logit} = {state}.raise({other}.top);")
            self.add(f"const float new{logit} = exponential({other}.top - {state}.base());")
            self.add(f"{state}.sum = fmaf({other}.sum, new{logit}, {state}.sum);")

    def _kernel(self) -> None:
        head = "template <class S> __device__ __forceinline__ void merge(const Args& args)"
        with self.block(head):
            self.add("using T = typename S::T;")
            self.add("const i64 width = args.heads * args.dim;")
            self.add("const int lane = threadIdx.x & (WARP - 1);")
            tiles = "i64 tile = blockIdx.y; tile * WARP < width; tile += gridDim.y"
            with self.block(f"for ({tiles})"):
                self.add("const i64 column = tile * WARP + lane;")
                self.add("const bool inside = column < width;")
                self.add("const i64 head = column / args.dim, within = column % args.dim;")
                self.add("merge_split_rows<Merged>(")
                with self.indented():
                    self.add("args.heavy_ptr, args.num_heavy, blockIdx.x, gridDim.x, MERGE_ALONE,")
                    with self.block("[&](int begin, int end)", "},"):
                        self._read_parts()
                    with self.block("[&](const Merged& all, i64 which)", "});"):
                        self._write_row()

    def _read_parts(self) -> None:
        self.add("Merged all;")
        self.add("all.clear();")
        with self.block("for (int slot = begin; inside && slot < end; slot++)"):
            self.add("Merged part;")
            for n, _, table in self.kept():
                width = table.heads * table.dim
                at = f"{self.places.sums[n]} * args.slots + slot * (i64){width}"
                self.add(f"part.acc{n} = args.partial[{at}{self._column(table)}];")
            for logit, place in self.places.states.items():
                heads = self.t.code[logit].heads
                head = " + head" if heads > 1 else ""
                for field, extra in (("top", 0), ("sum", heads)):
                    at = f"{place + extra} * args.slots + slot * (i64){heads}{head}"
                    self.add(f"part.state{logit}.{field} = args.partial[{at}];")
            self.add("all.merge(part);")
        self.add("return all;")

    def _write_row(self) -> None:
        self.add("if (!inside) return;")
        self.add("const i64 row = args.heavy_rows[which];")
        for n, reduction in enumerate(self.t.reductions):
            table = self.t.outputs[reduction.table]
            value = f"all.acc{n}"
            if reduction.how == "lse":
                value = f"all.state{reduction.value}.lse()"
            elif reduction.how == "softmax":
                value += f" / all.state{reduction.logit}.sum"
            at = f"row * {table.heads * table.dim}{self._column(table)}"
            put = f"put_number<T>(args.out{reduction.table}, {at}, {value});"
            self.add(f"{self._first(table)}{put}")

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


def _joined(n: int, reduction: Reduction) -> str:
    """The statement that adds another part's accumulator."""
    if reduction.how == "softmax":
        logit = reduction.logit
        return f"acc{n} = acc{n} * old{logit} + other.acc{n} * new{logit};"
    return added(reduction, f"acc{n}", f"other.acc{n}")

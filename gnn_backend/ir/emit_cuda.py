"""The CUDA source of a traversal; the emulator compiles the same text.

A group of lanes owns a task, a part of a row's elements, and streams it, several elements in
flight: indices, rows, registers (:mod:`emit_cuda_registers`), then sums and statistics
(:mod:`emit_cuda_rows`). Rows of several tasks leave parts that a second kernel merges
(:mod:`emit_cuda_merge`).
"""

from __future__ import annotations

from gnn_backend.ir import source_text
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.emit_cuda_merge import Merge
from gnn_backend.ir.emit_cuda_registers import Braces
from gnn_backend.ir.emit_cuda_rows import Rows
from gnn_backend.ir.traversal import Traversal
from gnn_backend.runtime.selection import Shape

_REGISTERS = 64  # of a lane, for rows in flight
_MOST = 8  # elements in flight
_MERGE_BLOCK = 256  # threads (kernels/split_rows.cuh)
#: Fields of the arguments before the tables, 8 bytes each.
FIELDS = ("tasks", "num_tasks", "heads", "dim", "partial", "slots", "heavy_rows", "heavy_ptr",
          "num_heavy")  # fmt: skip
_FIELD_TYPES = {
    **dict.fromkeys(("num_tasks", "heads", "dim", "slots", "num_heavy"), "i64"),
    "tasks": "const int4*",
    "partial": "float*",
}


def arguments(traversal: Traversal) -> list[tuple[str, Domain | int | None]]:
    """Every field of ``Args``, in order: its name, and what it is of."""
    return source_text.arguments(FIELDS, traversal)


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
    body = [*_argument_lines(traversal), *_program(traversal, in_flight(traversal, shape))]
    entries = [f"GNNB_ENTRY({name}, gnnb::Args, {block}, (gnnb::program<Layout>(args)))"]
    if traversal.rows is not None:
        merge = Merge(traversal)
        merge.write()
        body += merge.lines
        text = f"gnnb::Args, {_MERGE_BLOCK}, (gnnb::merge<Layout>(args))"
        entries.append(f"GNNB_ENTRY({name}_merge, {text})")
    return "\n".join([*head, *body, "}  // namespace gnnb", *entries]) + "\n"


def _argument_lines(traversal: Traversal) -> list[str]:
    text = Braces()
    with text.block("struct Args", "};"):
        for name, what in arguments(traversal):
            kind = _FIELD_TYPES.get(name, "const int*")
            if isinstance(what, int):
                kind = "const void*" if name.startswith("in") else "void*"
            text.add(f"{kind} {name};")
    return text.lines


def _program(traversal: Traversal, flight: int) -> list[str]:
    """The kernel: a loop over blocks of heads, in it one over the task's elements."""
    text = Rows(traversal)
    head = "template <class S> __device__ __forceinline__ void program(const Args& args)"
    with text.block(head):
        text.add("using T = typename S::T;")
        text.add(f"constexpr int K = S::VALUES, U = {flight};")
        text.add("const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;")
        text.add("const int blocks = (int)(args.heads / S::HEADS);")
        text.add("#pragma unroll 1")
        with text.block("for (int block = blockIdx.y; block < blocks; block += gridDim.y)"):
            text.add("const Lane<S> at(args.heads, args.dim, block);")
            text.add("const Lane<S> one = shared_by_heads(at);")
            text.add("const i64 number = warp * S::TASKS + at.group;")
            if traversal.rows is None:
                _map(text)
            else:
                _reduction(text)
    return text.lines


def _map(text: Rows) -> None:
    """U elements to a group."""
    text.add("const int row = 0;")
    text.add("const i64 begin = number * U;")
    text.add("const i64 left = args.num_tasks - begin;")
    text.add("const int count = (int)(left < 0 ? 0 : left < U ? left : U);")
    text.row_registers()
    text.clear()
    text.add("constexpr int first = 0;")
    _elements(text)


def _reduction(text: Rows) -> None:
    """A task to a group, which goes on while another group of the warp has elements left."""
    text.add("const bool exists = number < args.num_tasks;")
    text.add("const Task task = group_task<S>(args.tasks, args.num_tasks, number);")
    text.add("const int row = task.row, count = task.count;")
    text.add("const i64 begin = task.begin;")
    text.add("const int longest = longest_task<S>(count);")
    text.row_registers()
    text.clear()
    text.add("#pragma unroll 1")
    with text.block("for (int first = 0; first < longest; first += U)"):
        _elements(text)
    text.finish()


def _elements(text: Rows) -> None:
    text.element_registers()
    text.raise_maxima()
    text.accumulate()

"""Kernel instances of the sparse operators, generated from (operator, reduction, dtype, layout)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gnn_backend.runtime.instances import BLOCK, Unit
from gnn_backend.runtime.instances import _entry as entry
from gnn_backend.runtime.selection import DTYPE_TYPES
from gnn_backend.runtime.sparse.layout import (
    TYPES,
    Columns,
    Heads,
    blocks_for,
    columns_for,
    depth_for,
    heads_for,
)

REDUCE_BLOCK = 256  # threads of a merge block (MERGE_WARPS in kernels/split_rows.cuh)
OPERATORS = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "copy_lhs": "CopyLhs",
    "copy_rhs": "CopyRhs",
}
REDUCTIONS = ("sum", "max", "min")


def id_type(wide: bool) -> str:
    """The type of edge ids."""
    return "i64" if wide else "int"


def _bool(flag: bool) -> str:
    return str(flag).lower()


def _accesses(*accesses: str) -> str:
    return ", ".join(f"gnnb::{access.upper()}" for access in accesses)


@lru_cache(maxsize=512)
def spmm_unit(
    op: str, reduce: str, dtype: str, columns: Columns, accesses: tuple[str, str], wide: bool
) -> Unit:
    """One operator and reduction at one dtype and layout.

    Entries: ``<unit>``, and for max and min ``<unit>_arg``, which also writes the arguments.
    """
    kinds = "".join(access[0] for access in accesses)
    name = f"spmm_{op}_{reduce}_{dtype}_{columns.name}_{kinds}{'_wide' if wide else ''}"
    depth = depth_for(columns, accesses.count("row"))
    functor = OPERATORS[op]
    operands = 2 - accesses.count("none")
    text = "#define GNNB_CROWDED\n" if operands == 2 else ""
    text += f'#include "spmm.cuh"\nusing Layout = {columns.cuda(dtype)};\n'
    entries = {}
    if reduce == "sum":
        entries[name] = f"Sum<Layout, !gnnb::{functor}::ZEROS>"
    else:
        for suffix, flag in (("", False), ("_arg", True)):
            entries[name + suffix] = f"Extreme<Layout, {_bool(reduce == 'max')}, {_bool(flag)}>"
    for which, reduction in entries.items():
        arguments = f"gnnb::{functor}, gnnb::{reduction}, Layout, {_accesses(*accesses)}"
        body = f"spmm<{arguments}, {id_type(wide)}, {depth}>"
        blocks = blocks_for(op, dtype, columns, operands, reduce, which.endswith("_arg"))
        text += entry(which, "SpmmArgs", BLOCK, body, blocks)
    return Unit(name, tuple(entries), text)


def merged_columns(dtype: str, width: int) -> int:
    """Columns a lane of a merge: as many as one 16-byte access of the partials holds."""
    each = 2 if dtype == "f64" else 4
    return each if width % each == 0 else 1


@lru_cache(maxsize=64)
def reduce_merge_unit(dtype: str, vector: int, wide: bool) -> Unit:
    """Merges of every reduction: ``<unit>_sum``, ``_max``, ``_max_arg``, ``_min``, ``_min_arg``.

    ``vector`` is the number of columns a lane.
    """
    name = f"reduce_merge_{dtype}_v{vector}{'_wide' if wide else ''}"
    kind = TYPES[dtype]
    arithmetic = f"gnnb::Arithmetic<{kind}>::type"
    hows = {"sum": (f"MergeSum<{arithmetic}>", False)}
    for reduce in ("max", "min"):
        how = f"MergeExtreme<{arithmetic}, {_bool(reduce == 'max')}>"
        hows |= {reduce: (how, False), f"{reduce}_arg": (how, True)}
    text, entries = '#include "reduce_merge.cuh"\n', []
    for which, (how, arguments) in hows.items():
        entries.append(f"{name}_{which}")
        kinds = f"{kind}, gnnb::{how}, {_bool(arguments)}, {id_type(wide)}, {vector}"
        body = f"reduce_merge<{kinds}>"
        text += entry(entries[-1], "ReduceMergeArgs", REDUCE_BLOCK, body)
    return Unit(name, tuple(entries), text)


TARGETS = {"u": "SOURCE", "v": "DESTINATION", "e": "EDGE"}


def _targets(targets: tuple[str, str]) -> str:
    return ", ".join(f"gnnb::{TARGETS[target]}" for target in targets)


@lru_cache(maxsize=512)
def sddmm_unit(
    op: str,
    dtype: str,
    columns: Columns,
    accesses: tuple[str, str],
    targets: tuple[str, str],
    wide: bool,
) -> Unit:
    """A value an edge and column, from rows of its ends and its own."""
    kinds = "".join(a[0] + t for a, t in zip(accesses, targets, strict=True) if a != "none")
    name = f"sddmm_{op}_{dtype}_{columns.name}_{kinds}{'_wide' if wide else ''}"
    pairs = zip(accesses, targets, strict=True)
    depth = depth_for(columns, sum(a == "row" and t != "v" for a, t in pairs))
    arguments = f"gnnb::{OPERATORS[op]}, Layout, {_accesses(*accesses)}, {_targets(targets)}"
    body = f"sddmm<{arguments}, {id_type(wide)}, {depth}>"
    text = f'#include "sddmm.cuh"\nusing Layout = {columns.cuda(dtype)};\n'
    return Unit(name, (name,), text + entry(name, "SddmmArgs", BLOCK, body))


@lru_cache(maxsize=512)
def dot_unit(dtype: str, heads: Heads, targets: tuple[str, str], wide: bool) -> Unit:
    """A dot product an edge and head."""
    name = f"sddmm_dot_{dtype}_{heads.name}_{''.join(targets)}{'_wide' if wide else ''}"
    depth = 4 // max(1, sum(target != "v" for target in targets))
    body = f"sddmm_dot<Layout, {_targets(targets)}, {id_type(wide)}, {depth}>"
    text = f'#include "sddmm.cuh"\nusing Layout = {heads.cuda(dtype)};\n'
    return Unit(name, (name,), text + entry(name, "SddmmArgs", BLOCK, body))


SOFTMAX_GROUPS = (4, 8)  # lanes a task of few edges, of many
PASSES = {"forward": "SoftmaxStats", "backward": "ProductStats"}


@lru_cache(maxsize=512)
def edge_softmax_unit(dtype: str, columns: Columns, wide: bool) -> Unit:
    """Softmax over the edges of a row: ``<unit>_{forward,backward}_{stats,merge,apply}``."""
    name = f"edge_softmax_{dtype}_{columns.name}{'_wide' if wide else ''}"
    text = f'#include "edge_softmax.cuh"\nusing Layout = {columns.cuda(dtype)};\n'
    entries = []
    for which, stats in PASSES.items():
        depth = depth_for(columns, 1 if which == "forward" else 2)
        kind = f"gnnb::{stats}<Layout::C>"
        for step, args, threads, arguments in (
            ("stats", "EdgeSoftmaxArgs", BLOCK, f"{kind}, Layout, {id_type(wide)}, {depth}"),
            ("merge", "EdgeSoftmaxMergeArgs", REDUCE_BLOCK, kind),
            ("apply", "EdgeSoftmaxArgs", BLOCK, f"{kind}, Layout, {depth}"),
        ):
            entries.append(f"{name}_{which}_{step}")
            text += entry(entries[-1], args, threads, f"edge_softmax_{step}<{arguments}>")
    return Unit(name, tuple(entries), text)


_FAST_WIDTH = 128  # columns; the fast layout of a dtype is the same from 512 bytes on
_FAST_DIM = 64  # columns of a head


def fast_units() -> list[Unit]:
    """What the fast paths use at rows of 128 columns, and edge softmax of a few heads; not float64.

    The product of operators, reductions, layouts and dtypes has no end worth listing: other units
    are made when they are asked for.
    """
    return list(dict.fromkeys(unit for dtype in DTYPE_TYPES for unit in _fast_units(dtype)))


def _fast_units(dtype: str) -> Iterator[Unit]:
    width, node, edge, both = _FAST_WIDTH, ("row", "none"), ("none", "row"), ("row", "row")
    scaled = ("row", "head")
    for reduce in REDUCTIONS:
        for op, accesses in (("copy_lhs", node), ("copy_rhs", edge), ("mul", scaled),
                             ("mul", both), ("add", both)):  # fmt: skip
            columns = columns_for(dtype, width, accesses, _FAST_DIM)
            yield spmm_unit(op, reduce, dtype, columns, accesses, False)
    for op in ("add", "sub", "mul"):
        for right in "ve":
            columns = columns_for(dtype, width, both, 1)
            yield sddmm_unit(op, dtype, columns, both, ("u", right), False)
    for heads in (1, 2, 4, 8):
        sides = heads_for(dtype, heads, width // heads)
        yield from (dot_unit(dtype, sides, ("u", right), False) for right in "ve")
        for group in SOFTMAX_GROUPS:
            layout = columns_for(dtype, heads, ("row",), 1, group)
            yield edge_softmax_unit(dtype, layout, False)
    yield reduce_merge_unit(dtype, merged_columns(dtype, width), False)

"""The Numba source of a traversal.

A kernel is a C function (block, address of the arguments), as the hand-written ones are. Rows are
cut into blocks of equal work by position on the merge path of elements and rows, so a block may
begin and end inside a row; what it has of such a row goes to one of its two slots, and ``merge``
combines the slots of each row in order. Nothing depends on the number of threads.

Registers are written by :mod:`emit_numba_registers`, sums and statistics by :mod:`emit_numba_rows`.
"""

from __future__ import annotations

from gnn_backend.ir import source_text
from gnn_backend.ir.accumulators import Accumulators
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.emit_numba_registers import Variant
from gnn_backend.ir.emit_numba_rows import Rows
from gnn_backend.ir.traversal import Traversal

__all__ = ["Variant", "arguments", "buffer_size", "slot_size", "source"]

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


def arguments(traversal: Traversal) -> list[tuple[str, Domain | int | None]]:
    """Every field of the block of arguments: its name, and what it is of."""
    return source_text.arguments(FIELDS, traversal)


def source(traversal: Traversal, variant: Variant) -> str:
    """The text of the module: ``forward``, and ``merge`` where rows are reduced."""
    title = "A map." if traversal.rows is None else "A traversal."
    listing = "\n".join(traversal.listing())
    head = _HEAD.format(title=title, listing=listing, real=variant.real, offset=variant.offset)
    text = Rows(traversal, variant)
    if traversal.rows is None:
        _map(text)
    else:
        names = ", ".join(name for name, _ in arguments(traversal))
        text.clear()
        text.finish(names)
        _row(text, names)
        _forward(text, names)
        text.combine()
        _merge(text, names)
    return head + "\n".join(text.lines) + "\n"


def slot_size(traversal: Traversal) -> int:
    """Values that a partial row takes."""
    return Accumulators(traversal).total


def buffer_size(traversal: Traversal) -> int:
    """Values of scratch memory a block."""
    kept = sum(1 for s in traversal.code if s.per_row and s.dim == 1)
    return Accumulators(traversal).total + kept * traversal.heads


def _read_arguments(text: Rows) -> None:
    for place, (name, what) in enumerate(arguments(text.t)):
        kind = _POINTERS.get(name, "0")
        if name.startswith(("in", "out")) and isinstance(what, int):
            kind = "REAL"
        elif isinstance(what, Domain):
            same = text.v.row_identity if name.startswith("row_") else text.v.identity
            kind = "None" if what in same else "INDEX"
        text.add(f"{name} = field(address, {place}, {kind})")


def _row(text: Rows, names: str) -> None:
    """The function that adds a range of elements to a row."""
    with text.function(f"add_elements(acc, kept, row, begin, end, {names})"):
        text.row_registers()
        with text.block("for e in range(begin, end):"):
            text.element()
            text.add("pass")


def _forward(text: Rows, names: str) -> None:
    """The kernel: the rows of a block, whole or the block's part of them."""
    total, stride = text.layout.total, buffer_size(text.t)
    with text.function("forward(block, address)", inline=False):
        _read_arguments(text)
        text.add("first, last = get(first_rows, block), get(first_rows, block + 1)")
        text.add("start, stop = get(first_elements, block), get(first_elements, block + 1)")
        text.add("put(slot_row, 2 * block, -1)")
        text.add("put(slot_row, 2 * block + 1, -1)")
        text.add("slot = 2 * block")
        text.add(f"kept = shift(buffers, block * {stride} + {total})")
        with text.block("for row in range(first, min(last + 1, rows)):"):
            text.add("begin, end = np.int64(get(indptr, row)), np.int64(get(indptr, row + 1))")
            text.add("whole = (row > first or start == begin) and row < last")
            text.add("low, high = max(begin, start), min(end, stop)")
            with text.block("if row == last and low >= high:"):
                text.add("break")
            text.add(f"acc = shift(buffers, block * {stride})")
            with text.block("if not whole:"):
                text.add(f"acc = shift(slots, slot * {total})")
                text.add("put(slot_row, slot, row)")
                text.add("slot += 1")
            text.add("clear(acc)")
            text.add(f"add_elements(acc, kept, row, low, high, {names})")
            with text.block("if whole:"):
                text.add(f"finish(acc, row, begin == end, {names})")


def _merge(text: Rows, names: str) -> None:
    """The kernel that combines the slots of each row, in order."""
    total = text.layout.total
    with text.function("merge(block, address)", inline=False):
        _read_arguments(text)
        text.add("before = np.int64(-1)")
        text.add("acc = slots")
        with text.block("for slot in range(2 * blocks):"):
            text.add("row = get(slot_row, slot)")
            with text.block("if row < 0:"):
                text.add("continue")
            with text.block("if row == before:"):
                text.add(f"combine(acc, shift(slots, slot * {total}))")
                text.add("continue")
            with text.block("if before >= 0:"):
                text.add(f"finish(acc, before, False, {names})")
            text.add(f"acc = shift(slots, slot * {total})")
            text.add("before = row")
        with text.block("if before >= 0:"):
            text.add(f"finish(acc, before, False, {names})")


def _map(text: Rows) -> None:
    """The kernel of a map: a range of elements."""
    with text.function("forward(block, address)", inline=False):
        _read_arguments(text)
        text.add("begin, end = elements * block // blocks, elements * (block + 1) // blocks")
        text.add("row = np.int64(0)")
        text.add("kept = buffers")
        text.row_registers()
        with text.block("for e in range(begin, end):"):
            text.element()
            text.add("pass")

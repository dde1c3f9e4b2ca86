"""Kernel instances of aggregation, generated from (message, statistics, dtype, layout)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from gnn_backend.runtime.instances import BLOCK, Unit
from gnn_backend.runtime.instances import _entry as entry
from gnn_backend.runtime.selection import DTYPE_TYPES
from gnn_backend.runtime.sparse.instances import REDUCE_BLOCK, id_type, merged_columns
from gnn_backend.runtime.sparse.layout import TYPES, Columns, columns_for, depth_for

MESSAGES = {"copy": "Copy", "mul": "Times", "add": "Plus", "add_relu": "PlusRelu"}
#: Bits of FLAGS in kernels/statistics.cuh.
STATISTICS = {"sum": 1, "square": 2, "max": 4, "min": 8, "mul": 16, "softmax": 32}
KEEP, FIRST, NAN_WINS, SECOND = 64, 128, 256, 512
EXTREMES = STATISTICS["max"] | STATISTICS["min"]
#: Statistics that the reductions are made of.
PARTS = {
    "mean": ("sum",), "var": ("sum", "square"), "std": ("sum", "square"),
    **{name: (name,) for name in STATISTICS},
}  # fmt: skip
#: Rows of 16 bytes a lane that a term of backward reads for every edge.
_TERM_ROWS = {"sum": 1, "square": 1, "max": 1, "min": 1, "mul": 1, "softmax": 3}


def flags_of(
    names: Iterable[str], *, keep: bool, first: bool, nan_wins: bool, second: bool = False
) -> int:
    """FLAGS of these reductions; those that make no difference are left out."""
    flags = 0
    for name in names:
        for part in PARTS[name]:
            flags |= STATISTICS[part]
    if flags & EXTREMES:
        flags |= NAN_WINS * nan_wins | (FIRST * first if keep else 0)
    if flags & (EXTREMES | STATISTICS["mul"]):
        flags |= KEEP * keep
    return flags | (SECOND if second and flags & STATISTICS["softmax"] else 0)


def statistics_in(flags: int) -> list[str]:
    """Names of the statistics in FLAGS."""
    return [name for name, bit in STATISTICS.items() if flags & bit]


def _words(flags: int) -> int:
    """Words of ``Statistics`` a column."""
    kept = bool(flags & KEEP)
    sizes = {"sum": 1, "square": 1, "max": 1 + kept, "min": 1 + kept, "mul": 1 + 2 * kept,
             "softmax": 4}  # fmt: skip
    return sum(sizes[name] for name in statistics_in(flags))


def statistics_bytes(flags: int, dtype: str, wide: bool) -> int:
    """Bytes that ``Statistics`` takes a column, at most."""
    return _words(flags) * (8 if dtype == "f64" or (wide and flags & FIRST) else 4)


def merge_vector(flags: int, dtype: str, width: int) -> int:
    """Columns a lane of the merge: about 16 bytes of the partials, which a lane reads at once."""
    return merged_columns(dtype, width) if _words(flags) == 1 else 1


def _head(dtype: str, columns: Columns, header: str) -> str:
    text = "#define GNNB_CROWDED\n"
    return text + f'#include "{header}"\nusing Layout = {columns.cuda(dtype)};\n'


def _name(
    which: str, kind: str, flags: int, dtype: str, columns: Columns, access: str, wide: bool
) -> str:
    end = f"{columns.name}_{access[0]}{'_wide' if wide else ''}"
    return f"{which}_{kind}_{flags:x}_{dtype}_{end}"


@lru_cache(maxsize=512)
def forward_unit(
    kind: str, flags: int, dtype: str, columns: Columns, access: str, wide: bool
) -> Unit:
    """One pass over the neighbours. ``access``: of the edges' values, ``none`` without any."""
    name = _name("aggregate", kind, flags, dtype, columns, access, wide)
    depth = depth_for(columns, 1 + (access == "row"))
    arguments = f"gnnb::{MESSAGES[kind]}, {flags}, Layout, gnnb::{access.upper()}"
    body = f"aggregate<{arguments}, {id_type(wide)}, {depth}>"
    text = entry(name, "AggregateArgs", BLOCK, body, _blocks(flags, dtype, columns))
    return Unit(name, (name,), _head(dtype, columns, "aggregate.cuh") + text)


def _blocks(flags: int, dtype: str, columns: Columns) -> int:
    """Blocks to fit a multiprocessor: as many as leave enough registers."""
    if not (columns.vector and columns.full) or dtype == "f64":
        return 1
    registers = 32 + columns.values * (_words(flags) + 2) + 16
    return max(1, min(10, 65536 // (BLOCK * registers)))


@lru_cache(maxsize=128)
def merge_unit(flags: int, dtype: str, vector: int, wide: bool) -> Unit:
    """The merge of split rows."""
    name = f"aggregate_merge_{flags:x}_{dtype}_v{vector}{'_wide' if wide else ''}"
    body = f"aggregate_merge<{TYPES[dtype]}, {flags}, {id_type(wide)}, {vector}>"
    text = '#include "aggregate.cuh"\n' + entry(name, "AggregateMergeArgs", REDUCE_BLOCK, body)
    return Unit(name, (name,), text)


def _backward_depth(flags: int, columns: Columns) -> int:
    return depth_for(columns, sum(_TERM_ROWS[name] for name in statistics_in(flags)))


@lru_cache(maxsize=512)
def backward_unit(
    kind: str, flags: int, dtype: str, columns: Columns, access: str, wide: bool
) -> Unit:
    """Gradients of the sources' rows."""
    name = _name("aggregate_backward", kind, flags, dtype, columns, access, wide)
    arguments = f"gnnb::{MESSAGES[kind]}, {flags}, Layout, gnnb::{access.upper()}"
    depth = _backward_depth(flags, columns)
    body = f"aggregate_backward<{arguments}, {id_type(wide)}, {depth}>"
    text = entry(name, "AggregateBackwardArgs", BLOCK, body)
    return Unit(name, (name,), _head(dtype, columns, "aggregate_backward.cuh") + text)


@lru_cache(maxsize=512)
def backward_edge_unit(
    kind: str, flags: int, dtype: str, columns: Columns, access: str, wide: bool
) -> Unit:
    """Gradients of the edges' values."""
    name = _name("aggregate_backward_edge", kind, flags, dtype, columns, access, wide)
    arguments = f"gnnb::{MESSAGES[kind]}, {flags}, Layout, gnnb::{access.upper()}"
    depth = _backward_depth(flags, columns)
    body = f"aggregate_backward_edge<{arguments}, {id_type(wide)}, {depth}>"
    text = entry(name, "AggregateBackwardArgs", BLOCK, body)
    return Unit(name, (name,), _head(dtype, columns, "aggregate_backward.cuh") + text)


_FAST_WIDTHS = (64, 128)  # columns; the fast layout of a dtype is the same from 512 bytes on
_FAST_SETS = (("max",), ("mean", "max", "min", "std"))


def fast_units() -> list[Unit]:
    """What extremes and PNA's four reductions of sources' rows use; not float64.

    Sums and means alone run on the units of the generalised SpMM.
    """
    return list(dict.fromkeys(unit for dtype in DTYPE_TYPES for unit in _fast_units(dtype)))


def _fast_units(dtype: str) -> Iterator[Unit]:
    for width in _FAST_WIDTHS:
        columns = columns_for(dtype, width, ("row", "none"), width)
        for names in _FAST_SETS:
            for keep, first in ((False, False), (True, False), (True, True)):
                flags = flags_of(names, keep=keep, first=first, nan_wins=True)
                yield forward_unit("copy", flags, dtype, columns, "none", False)
                yield merge_unit(flags, dtype, merge_vector(flags, dtype, width), False)
                if keep:
                    yield backward_unit("copy", flags, dtype, columns, "none", False)

"""How the columns of a row lie over lanes, and how operands that broadcast are read.

The mapping is that of the yardstick (kernels/yardstick.cuh), which reaches the bandwidth of the
memory at rows of 512 bytes: one 16-byte access a lane and row, four rows in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from gnn_backend.runtime.selection import DTYPE_NAMES, DTYPE_TYPES, PER_ACCESS, WARP

NAMES = {**DTYPE_NAMES, torch.float64: "f64"}
TYPES = {name: f"gnnb::{kind}" for name, kind in DTYPE_TYPES.items()}
TYPES |= {"f32": "float", "f64": "double"}
_PER_ACCESS = {**PER_ACCESS, "f64": 2}  # values in 16 bytes
MIN_GROUP = 8  # lanes a task, so that narrow rows keep enough edges in flight
_MAX_SINGLES = 4  # columns a lane reads one by one
_LOADS = 4  # row accesses in flight a lane

#: How an operand gives a value for a column (``Access`` in kernels/edges.cuh).
ACCESSES = ("none", "row", "head", "table")


@dataclass(frozen=True)
class Columns:
    """Lane layout of a row (``Columns`` in kernels/edges.cuh).

    Attributes
    ----------
    lanes, edges, values : int
        Lanes an edge, edges of a task side by side, columns a lane; all powers of two.
    vector : bool
        A lane's columns are one 16-byte access, else they are read one by one.
    full : bool
        The width is a multiple of ``lanes * values``; else the last tile is masked.
    """

    lanes: int
    edges: int
    values: int
    vector: bool
    full: bool

    @property
    def tasks(self) -> int:
        """Tasks side by side in a warp."""
        return WARP // (self.lanes * self.edges)

    @property
    def tile(self) -> int:
        """Columns that are worked on at once."""
        return self.lanes * self.values

    @property
    def short(self) -> bool:
        """A lane's columns are a whole row that is read at once."""
        return not self.vector and self.full and self.lanes == 1

    @property
    def name(self) -> str:
        kind = ("v" if self.vector else "s") + ("f" if self.full else "m")
        return f"l{self.lanes}e{self.edges}k{self.values}{kind}"

    def cuda(self, dtype: str) -> str:
        """The type in CUDA C++."""
        flags = f"{str(self.vector).lower()}, {str(self.full).lower()}"
        sizes = f"{self.lanes}, {self.edges}, {self.values}"
        return f"gnnb::Columns<{TYPES[dtype]}, {sizes}, {flags}>"


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below ``n``."""
    return 1 << max(0, n - 1).bit_length()


@lru_cache(maxsize=1024)
def columns_for(
    dtype: str, width: int, accesses: tuple[str, ...], dim: int, group: int = MIN_GROUP
) -> Columns:
    """Lane layout for rows of ``width`` columns, given how the operands are read.

    ``dim`` is the number of columns that share a value of ``head`` access, ``group`` the least
    number of lanes a task.
    """
    each = _PER_ACCESS[dtype]
    vector = width % each == 0 and "table" not in accesses
    vector = vector and ("head" not in accesses or dim % each == 0)
    if vector:
        values, lanes = each, min(WARP, power_of_two(width // each))
    else:
        # A few columns are one lane's, which then needs no other lane's edge ids.
        lanes = 1 if width <= _MAX_SINGLES else min(WARP, power_of_two(width))
        values = min(_MAX_SINGLES, power_of_two(-(-width // lanes)))
    group = max(lanes, group)
    return Columns(lanes, group // lanes, values, vector, width % (lanes * values) == 0)


@dataclass(frozen=True)
class Heads:
    """Lane layout of dot products (``Heads`` in kernels/sddmm.cuh).

    Attributes
    ----------
    lanes, heads, edges : int
        Lanes a head, heads side by side, edges of a task side by side; powers of two.
    vector : bool
        16-byte accesses, else one value at a time.
    once : bool
        One access a lane covers the length.
    """

    lanes: int
    heads: int
    edges: int
    vector: bool
    once: bool

    @property
    def tasks(self) -> int:
        """Tasks side by side in a warp."""
        return WARP // (self.lanes * self.heads * self.edges)

    @property
    def tile(self) -> int:
        """Heads that are worked on at once."""
        return self.heads

    @property
    def name(self) -> str:
        kind = ("v" if self.vector else "s") + ("o" if self.once else "l")
        return f"l{self.lanes}h{self.heads}e{self.edges}{kind}"

    def cuda(self, dtype: str) -> str:
        """The type in CUDA C++."""
        flags = f"{str(self.vector).lower()}, {str(self.once).lower()}"
        sizes = f"{self.lanes}, {self.heads}, {self.edges}"
        return f"gnnb::Heads<{TYPES[dtype]}, {sizes}, {flags}>"


@lru_cache(maxsize=1024)
def heads_for(dtype: str, heads: int, dim: int) -> Heads:
    """Lane layout for dot products of length ``dim``, ``heads`` of them an edge."""
    each = _PER_ACCESS[dtype]
    vector = dim > 0 and dim % each == 0
    width = each if vector else 1
    lanes = min(WARP, power_of_two(-(-max(1, dim) // width)))
    side = 1
    while lanes * side * 2 <= WARP and heads % (side * 2) == 0:
        side *= 2
    group = max(lanes * side, MIN_GROUP)
    return Heads(lanes, side, group // (lanes * side), vector, lanes * width >= dim)


def depth_for(columns: Columns, rows: int) -> int:
    """Edges in flight a lane, when each takes so many row accesses."""
    loads = rows * (1 if columns.vector or columns.short else columns.values)
    return max(1, _LOADS // max(1, loads))


def blocks_for(
    op: str, dtype: str, columns: Columns, operands: int, reduce: str, arguments: bool
) -> int:
    """Blocks to fit a multiprocessor: as many as leave enough registers on every architecture.

    A division is a call where it is not exact, which takes registers of its own.
    """
    if not (columns.vector and columns.full) or op == "div":
        return 1
    halves = dtype in ("bf16", "f16")  # eight columns a lane
    if operands == 1 and reduce == "sum" and columns.lanes == WARP:
        return 12
    # Two operands: as far as sm_90 goes; the kernels are marked as crowded for other architectures.
    blocks = 10 if operands == 1 or not halves else 9
    return blocks - (2 if halves else 1) * arguments - (columns.edges > 1 or dtype == "f64")

"""Launches of the generalised SpMM: the traversal, and the merge of split rows."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK
from gnn_backend.runtime.plan import MAX_GRID_Y
from gnn_backend.runtime.selection import WARP
from gnn_backend.runtime.sparse.instances import (
    REDUCE_BLOCK,
    merged_columns,
    reduce_merge_unit,
    spmm_unit,
)
from gnn_backend.runtime.sparse.layout import NAMES, Columns, Heads, columns_for
from gnn_backend.runtime.sparse.rows import Rows

SPMM_ARGS = struct.Struct("<20q")  # SpmmArgs in kernels/spmm.cuh
REDUCE_MERGE_ARGS = struct.Struct("<12q")  # ReduceMergeArgs in kernels/reduce_merge.cuh
WARPS = BLOCK // WARP
MERGED_ROWS = REDUCE_BLOCK // WARP  # split rows a block of a merge


@dataclass(frozen=True)
class Operand:
    """A table [rows, ...] that is contiguous and aligned, and how its columns are found.

    ``offsets``: int32 [width] for ``table`` access.
    """

    tensor: Tensor | None = None
    access: str = "none"
    offsets: Tensor | None = None

    @cached_property
    def words(self) -> tuple[int, int, int]:
        """``Table`` in kernels/edges.cuh: data, offsets, bytes a row."""
        tensor = self.tensor
        if tensor is None:
            return (0, 0, 0)
        offsets = 0 if self.offsets is None else self.offsets.data_ptr()
        rows = max(1, tensor.shape[0])
        return (tensor.data_ptr(), offsets, tensor.nbytes // rows)

    @property
    def row_bytes(self) -> int:
        """Bytes a row, 0 for an operand that is not there."""
        return self.words[2]


def grid(tasks: int, layout: Columns | Heads, width: int) -> tuple[int, int]:
    """Blocks that give every task its lanes, and every tile of columns a row of the grid."""
    tiles = -(-width // layout.tile)
    return -(-tasks // (WARPS * layout.tasks)), min(MAX_GRID_Y, tiles)


@dataclass(frozen=True)
class Result:
    """What a reduction gives; the arguments where they were asked for."""

    out: Tensor
    arg_source: Tensor | None = None
    arg_edge: Tensor | None = None


def spmm(
    engine: DeviceEngine,
    rows: Rows,
    op: str,
    reduce: str,
    lhs: Operand,
    rhs: Operand,
    width: int,
    dim: int,
    arguments: bool,
    nothing: int = 0,
) -> Result:
    """Reduce ``op(lhs, rhs)`` over the edges of every row.

    Parameters
    ----------
    engine : DeviceEngine
    rows : Rows
    op : str
        A key of ``instances.OPERATORS``.
    reduce : {"sum", "mean", "max", "min"}
    lhs, rhs : Operand
        Rows of the other end and of the edges.
    width, dim : int
        Columns of the result, columns that share a value of ``head`` access.
    arguments : bool
        Also give the winners of an extreme.
    nothing : int
        The argument where nothing won.

    Returns
    -------
    Result
        ``out`` [num_rows, width], ``arg_source`` int32 and ``arg_edge`` of ``rows.edge_dtype``.
    """
    first = lhs.tensor if lhs.tensor is not None else rhs.tensor
    assert first is not None
    name, kind = NAMES[first.dtype], "sum" if reduce == "mean" else reduce
    accesses = (lhs.access, rhs.access)
    columns = columns_for(name, width, accesses, dim)
    unit = spmm_unit(op, kind, name, columns, accesses, rows.wide)
    suffix = "_arg" if arguments else ""
    job = _Job(engine, rows, first, width, lhs.tensor is not None and arguments,
               rhs.tensor is not None and arguments)  # fmt: skip
    args = SPMM_ARGS.pack(
        rows.splits.tasks.data_ptr(),
        rows.splits.num_tasks,
        rows.csr.indices.data_ptr(),
        0 if rhs.tensor is None else rows.edge_ids,
        *lhs.words,
        *rhs.words,
        width,
        dim,
        reduce == "mean",
        nothing,
        *job.whole.words,
        *job.partial.words,
    )
    blocks = grid(rows.splits.num_tasks, columns, width)
    engine.launch(unit, unit.name + suffix, blocks, BLOCK, args)
    if rows.num_heavy:
        job.merge(name, kind + suffix, reduce == "mean", nothing)
    return job.result


class _Target:
    """Rows that a kernel writes: values, and the arguments that are wanted."""

    def __init__(
        self, count: int, width: int, values: torch.dtype, edges: torch.dtype, like: Tensor,
        source: bool, edge: bool,
    ) -> None:  # fmt: skip
        shape = (count, width)
        self.values = like.new_empty(shape, dtype=values)
        self.source = like.new_empty(shape, dtype=torch.int32) if source else None
        self.edge = like.new_empty(shape, dtype=edges) if edge else None

    @property
    def words(self) -> tuple[int, int, int]:
        source = 0 if self.source is None else self.source.data_ptr()
        edge = 0 if self.edge is None else self.edge.data_ptr()
        return (self.values.data_ptr(), source, edge)


class _Job:
    """Output and scratch memory of one call, which must live until the merge is launched."""

    def __init__(
        self, engine: DeviceEngine, rows: Rows, like: Tensor, width: int, source: bool, edge: bool
    ) -> None:
        self.engine, self.rows, self.width = engine, rows, width
        wide = torch.promote_types(like.dtype, torch.float32)
        ids, slots = rows.edge_dtype, rows.splits.num_slots
        self.whole = _Target(rows.num_rows, width, like.dtype, ids, like, source, edge)
        self.partial = _Target(slots, width, wide, ids, like, source, edge)

    def merge(self, dtype: str, which: str, mean: bool, nothing: int) -> None:
        splits, vector = self.rows.splits, merged_columns(dtype, self.width)
        unit = reduce_merge_unit(dtype, vector, self.rows.wide)
        args = REDUCE_MERGE_ARGS.pack(
            splits.heavy_rows.data_ptr(),
            splits.heavy_ptr.data_ptr(),
            self.rows.heavy_degrees.data_ptr() if mean else 0,
            self.rows.num_heavy,
            self.width,
            nothing,
            *self.partial.words,
            *self.whole.words,
        )
        blocks = (-(-self.rows.num_heavy // MERGED_ROWS),
                  min(MAX_GRID_Y, -(-self.width // (WARP * vector))))  # fmt: skip
        self.engine.launch(unit, f"{unit.name}_{which}", blocks, REDUCE_BLOCK, args)

    @property
    def result(self) -> Result:
        return Result(self.whole.values, self.whole.source, self.whole.edge)

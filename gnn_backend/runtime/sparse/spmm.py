"""Launches of the generalised SpMM: the traversal, and the merge of split rows."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK, Unit
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


class Operand(NamedTuple):
    """How the columns of a table [rows, ...] that is contiguous and aligned are found.

    ``offsets``: int32 [width] for ``table`` access. ``row_bytes`` is 0 where there is no table.
    """

    access: str = "none"
    row_bytes: int = 0
    offsets: Tensor | None = None

    def words(self, table: Tensor | None) -> tuple[int, int, int]:
        """``Table`` in kernels/edges.cuh: data, offsets, bytes a row."""
        if table is None:
            return (0, 0, 0)
        offsets = 0 if self.offsets is None else self.offsets.data_ptr()
        return (table.data_ptr(), offsets, self.row_bytes)


def grid(tasks: int, layout: Columns | Heads, width: int) -> tuple[int, int]:
    """Blocks that give every task its lanes, and every tile of columns a row of the grid."""
    tiles = -(-width // layout.tile)
    return -(-tasks // (WARPS * layout.tasks)), min(MAX_GRID_Y, tiles)


class Result(NamedTuple):
    """Rows that a reduction gives: values, and the arguments where they were asked for."""

    out: Tensor
    arg_source: Tensor | None = None
    arg_edge: Tensor | None = None

    @property
    def words(self) -> tuple[int, int, int]:
        """Addresses, 0 for what is not there."""
        out, source, edge = self
        return (
            out.data_ptr(),
            0 if source is None else source.data_ptr(),
            0 if edge is None else edge.data_ptr(),
        )


class Plan:
    """Launches of one reduction over the same rows, but for where its tensors lie.

    Parameters
    ----------
    rows : Rows
    op : str
        A key of ``instances.OPERATORS``.
    reduce : {"sum", "mean", "max", "min"}
    dtype : torch.dtype
        Of the operands.
    lhs, rhs : Operand
        Rows of the other end and of the edges.
    width, dim : int
        Columns of the result, columns that share a value of ``head`` access.
    arguments : bool
        Also give the winners of an extreme.
    nothing : int
        The argument where nothing won.
    """

    def __init__(
        self, rows: Rows, op: str, reduce: str, dtype: torch.dtype, lhs: Operand, rhs: Operand,
        width: int, dim: int, arguments: bool, nothing: int = 0,
    ) -> None:  # fmt: skip
        name, kind = NAMES[dtype], "sum" if reduce == "mean" else reduce
        accesses, suffix = (lhs.access, rhs.access), "_arg" if arguments else ""
        columns = columns_for(name, width, accesses, dim)
        self.rows, self.lhs, self.rhs, self.width = rows, lhs, rhs, width
        self.unit = spmm_unit(op, kind, name, columns, accesses, rows.wide)
        self.entry = self.unit.name + suffix
        self.blocks = grid(rows.splits.num_tasks, columns, width)
        self.wide = torch.promote_types(dtype, torch.float32)
        self.arguments = tuple(arguments and o.access != "none" for o in (lhs, rhs))
        self._tasks = (
            rows.splits.tasks.data_ptr(),
            rows.splits.num_tasks,
            rows.csr.indices.data_ptr(),
            0 if rhs.access == "none" else rows.edge_ids,
        )
        self._numbers = (width, dim, reduce == "mean", nothing)
        self._merge = self._merge_of(name, kind + suffix) if rows.num_heavy else None

    def _merge_of(
        self, dtype: str, which: str
    ) -> tuple[Unit, str, tuple[int, int], tuple[int, ...]]:
        """Unit, entry, blocks and first arguments of the merge of split rows."""
        rows, vector = self.rows, merged_columns(dtype, self.width)
        _, _, mean, nothing = self._numbers
        unit = reduce_merge_unit(dtype, vector, rows.wide)
        blocks = (-(-rows.num_heavy // MERGED_ROWS),
                  min(MAX_GRID_Y, -(-self.width // (WARP * vector))))  # fmt: skip
        first = (
            rows.splits.heavy_rows.data_ptr(),
            rows.splits.heavy_ptr.data_ptr(),
            rows.heavy_degrees.data_ptr() if mean else 0,
            rows.num_heavy,
            self.width,
            nothing,
        )
        return unit, f"{unit.name}_{which}", blocks, first

    def run(self, engine: DeviceEngine, lhs: Tensor | None, rhs: Tensor | None) -> Result:
        """Reduce ``op(lhs, rhs)`` over the edges of every row.

        Parameters
        ----------
        engine : DeviceEngine
        lhs, rhs : Tensor or None
            Contiguous and aligned, as the operands of the plan say.

        Returns
        -------
        Result
            ``out`` [num_rows, width], ``arg_source`` int32 and ``arg_edge`` of ``rows.edge_dtype``.
        """
        first = lhs if lhs is not None else rhs
        assert first is not None
        whole = self._target(first, self.rows.num_rows, first.dtype)
        self.launch(engine, lhs, rhs, whole)
        return whole

    def launch(
        self, engine: DeviceEngine, lhs: Tensor | None, rhs: Tensor | None, whole: Result
    ) -> None:
        """The same into tensors that are given, of any shape but without gaps."""
        partial, split = (0, 0, 0), None
        if self._merge is not None:
            split = self._target(whole.out, self.rows.splits.num_slots, self.wide)
            partial = split.words
        args = SPMM_ARGS.pack(
            *self._tasks, *self.lhs.words(lhs), *self.rhs.words(rhs), *self._numbers,
            *whole.words, *partial,
        )  # fmt: skip
        engine.launch(self.unit, self.entry, self.blocks, BLOCK, args)
        if self._merge is not None:
            unit, entry, blocks, numbers = self._merge
            args = REDUCE_MERGE_ARGS.pack(*numbers, *partial, *whole.words)
            engine.launch(unit, entry, blocks, REDUCE_BLOCK, args)
        del split  # not before the merge is launched

    def _target(self, like: Tensor, count: int, dtype: torch.dtype) -> Result:
        shape, (source, edge) = (count, self.width), self.arguments
        return Result(
            like.new_empty(shape, dtype=dtype),
            like.new_empty(shape, dtype=torch.int32) if source else None,
            like.new_empty(shape, dtype=self.rows.edge_dtype) if edge else None,
        )

"""Launches of aggregation over the same rows, but for where their tensors lie."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import torch
from torch import Tensor

from gnn_backend.runtime.aggregation import Message
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK
from gnn_backend.runtime.plan import MAX_GRID_Y
from gnn_backend.runtime.selection import WARP
from gnn_backend.runtime.sparse.aggregation_instances import (
    FIRST,
    backward_edge_unit,
    backward_unit,
    forward_unit,
    merge_unit,
    merge_vector,
    statistics_bytes,
)
from gnn_backend.runtime.sparse.instances import REDUCE_BLOCK, merged_columns, reduce_merge_unit
from gnn_backend.runtime.sparse.layout import NAMES, columns_for
from gnn_backend.runtime.sparse.rows import Rows
from gnn_backend.runtime.sparse.spmm import MERGED_ROWS, REDUCE_MERGE_ARGS, Operand, grid

#: ``Results`` in kernels/aggregate_results.cuh, in order.
RESULTS = (
    "sum", "mean", "square", "var", "std", "max", "min", "mul", "softmax",
    "center", "max_kept", "min_kept", "mul_rest", "mul_zeros", "softmax_lse", "softmax_spread",
)  # fmt: skip
#: Tables of ``GradientTables`` in kernels/aggregate_terms.cuh, in order.
TABLES = ("linear", "quadratic", "whole", "lone", "lse", "softmax", "softmax_grad", "most",
          "most_grad", "least", "least_grad")  # fmt: skip
AGGREGATE_ARGS = struct.Struct("<31q")  # AggregateArgs in kernels/aggregate.cuh
AGGREGATE_MERGE_ARGS = struct.Struct("<23q")  # AggregateMergeArgs there
BACKWARD_ARGS = struct.Struct("<28q")  # AggregateBackwardArgs in kernels/aggregate_backward.cuh


def edge_operand(message: Message) -> tuple[Operand, int]:
    """How the edges' values are read, and the columns that share one."""
    width, edge = message.x.shape[1:].numel(), message.edge
    if edge is None:
        return Operand(), 1
    per_edge = edge.shape[1:].numel()
    size = per_edge * edge.element_size()
    if per_edge == width:
        return Operand("row", size), 1
    return Operand("head", size), width // per_edge


def _row(message: Message) -> Operand:
    return Operand("row", message.x.shape[1:].numel() * message.x.element_size())


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _heat(temperature: Tensor | None) -> tuple[int, int]:
    """Address and step between columns."""
    return (0, 0) if temperature is None else (temperature.data_ptr(), temperature.numel() > 1)


class ForwardPlan:
    """One pass over the rows by destination, and the merge of split rows.

    Parameters
    ----------
    rows : Rows
        By destination.
    message : Message
        Whose shapes and dtype later calls have as well.
    flags : int
        Of ``aggregation_instances``.
    """

    def __init__(self, rows: Rows, message: Message, flags: int) -> None:
        dtype, width = NAMES[message.x.dtype], message.x.shape[1:].numel()
        self.x, (self.edge, dim) = _row(message), edge_operand(message)
        columns = columns_for(dtype, width, ("row", self.edge.access), dim)
        self.rows, self.width = rows, width
        self.unit = forward_unit(message.kind, flags, dtype, columns, self.edge.access, rows.wide)
        self.blocks = grid(rows.splits.num_tasks, columns, width)
        numbered = self.edge.access != "none" or flags & FIRST
        self._tasks = (
            rows.splits.tasks.data_ptr(),
            rows.splits.num_tasks,
            rows.csr.indices.data_ptr(),
            rows.edge_ids if numbered else 0,
        )
        self._numbers = (width, dim)
        self._slot_bytes = rows.splits.num_slots * width * statistics_bytes(flags, dtype, rows.wide)
        vector = merge_vector(flags, dtype, width)
        self._merge = merge_unit(flags, dtype, vector, rows.wide)
        tiles = -(-width // (WARP * vector))
        self._merge_blocks = -(-rows.num_heavy // MERGED_ROWS), min(MAX_GRID_Y, tiles)

    def run(
        self,
        engine: DeviceEngine,
        message: Message,
        temperature: Tensor | None,
        out: Mapping[str, Tensor],
    ) -> None:
        """Reduce messages into ``out``, keys among ``RESULTS``, each [num_dst, H, D]."""
        results = tuple(_pointer(out.get(name)) for name in RESULTS)
        partial = None
        if self.rows.num_heavy:
            partial = message.x.new_empty(self._slot_bytes, dtype=torch.uint8)
        args = AGGREGATE_ARGS.pack(
            *self._tasks, *self.x.words(message.x), *self.edge.words(message.edge),
            *self._numbers, *_heat(temperature), _pointer(partial), *results,
        )  # fmt: skip
        engine.launch(self.unit, self.unit.name, self.blocks, BLOCK, args)
        if partial is None:
            return
        splits = self.rows.splits
        args = AGGREGATE_MERGE_ARGS.pack(
            splits.heavy_rows.data_ptr(), splits.heavy_ptr.data_ptr(),
            self.rows.heavy_degrees.data_ptr(), self.rows.num_heavy, self.width,
            self._tasks[3], partial.data_ptr(), *results,
        )  # fmt: skip
        engine.launch(self._merge, self._merge.name, self._merge_blocks, REDUCE_BLOCK, args)


class _Backward:
    """What both backward passes share."""

    def __init__(self, rows: Rows, message: Message) -> None:
        self.dtype, self.width = NAMES[message.x.dtype], message.x.shape[1:].numel()
        self.x, (self.edge, self.dim) = _row(message), edge_operand(message)
        self.rows = rows
        self._tasks = (
            rows.splits.tasks.data_ptr(),
            rows.splits.num_tasks,
            rows.csr.indices.data_ptr(),
        )

    def _pack(
        self, message: Message, tables: Mapping[str, Tensor], temperature: Tensor | None,
        edge_ids: int, out: Tensor, partial: Tensor | None,
    ) -> bytes:  # fmt: skip
        return BACKWARD_ARGS.pack(
            *self._tasks, edge_ids, *self.x.words(message.x), *self.edge.words(message.edge),
            self.width, self.dim, *(_pointer(tables.get(name)) for name in TABLES), self.width,
            *_heat(temperature), out.data_ptr(), _pointer(partial),
        )  # fmt: skip


class BackwardPlan(_Backward):
    """Gradients of the sources' rows; ``rows`` by source, other parameters as above."""

    def __init__(self, rows: Rows, message: Message, flags: int) -> None:
        super().__init__(rows, message)
        access = self.edge.access
        columns = columns_for(self.dtype, self.width, ("row", access), self.dim)
        self.unit = backward_unit(message.kind, flags, self.dtype, columns, access, rows.wide)
        self.blocks = grid(rows.splits.num_tasks, columns, self.width)
        # Only edge operands and places ask for ids, which may have to be sorted first.
        self._ids = rows.edge_ids if access != "none" or flags & FIRST else 0
        vector = merged_columns(self.dtype, self.width)
        self._merge = reduce_merge_unit(self.dtype, vector, rows.wide)
        tiles = -(-self.width // (WARP * vector))
        self._merge_blocks = -(-rows.num_heavy // MERGED_ROWS), min(MAX_GRID_Y, tiles)

    def run(
        self, engine: DeviceEngine, message: Message, tables: Mapping[str, Tensor],
        temperature: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """The gradient of ``message.x``, from tables whose keys are among ``TABLES``."""
        out, partial = torch.empty_like(message.x), None
        splits = self.rows.splits
        if self.rows.num_heavy:
            wide = torch.promote_types(out.dtype, torch.float32)
            partial = out.new_empty(splits.num_slots * self.width, dtype=wide)
        args = self._pack(message, tables, temperature, self._ids, out, partial)
        engine.launch(self.unit, self.unit.name, self.blocks, BLOCK, args)
        if partial is not None:
            args = REDUCE_MERGE_ARGS.pack(
                splits.heavy_rows.data_ptr(), splits.heavy_ptr.data_ptr(), 0, self.rows.num_heavy,
                self.width, 0, partial.data_ptr(), 0, 0, out.data_ptr(), 0, 0,
            )  # fmt: skip
            entry = f"{self._merge.name}_sum"
            engine.launch(self._merge, entry, self._merge_blocks, REDUCE_BLOCK, args)
        return out


class BackwardEdgePlan(_Backward):
    """Gradients of the edges' values; ``rows`` by destination, other parameters as above."""

    def __init__(self, rows: Rows, message: Message, flags: int) -> None:
        super().__init__(rows, message)
        access = self.edge.access
        columns_of = self.dim if access == "head" else self.width
        columns = columns_for(self.dtype, columns_of, ("row", "row"), 1)
        self.unit = backward_edge_unit(message.kind, flags, self.dtype, columns, access, rows.wide)
        blocks, tiles = grid(rows.splits.num_tasks, columns, columns_of)
        shared = access == "head"
        self.blocks = blocks, min(MAX_GRID_Y, self.width // self.dim) if shared else tiles

    def run(
        self, engine: DeviceEngine, message: Message, tables: Mapping[str, Tensor],
        temperature: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """The gradient of ``message.edge``."""
        assert message.edge is not None
        out = torch.empty_like(message.edge)
        args = self._pack(message, tables, temperature, self.rows.edge_ids, out, None)
        engine.launch(self.unit, self.unit.name, self.blocks, BLOCK, args)
        return out

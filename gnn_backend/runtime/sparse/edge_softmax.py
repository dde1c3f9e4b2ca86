"""Launches of the softmax over the edges of each row: two, or three where rows are split."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK
from gnn_backend.runtime.plan import MAX_GRID_Y
from gnn_backend.runtime.selection import WARP
from gnn_backend.runtime.sparse.instances import REDUCE_BLOCK, SOFTMAX_GROUPS, edge_softmax_unit
from gnn_backend.runtime.sparse.layout import NAMES, columns_for, depth_for, power_of_two
from gnn_backend.runtime.sparse.rows import Rows
from gnn_backend.runtime.sparse.spmm import MERGED_ROWS, WARPS, Operand, grid

EDGE_SOFTMAX_ARGS = struct.Struct("<16q")  # EdgeSoftmaxArgs in kernels/edge_softmax.cuh
EDGE_SOFTMAX_MERGE_ARGS = struct.Struct("<7q")  # EdgeSoftmaxMergeArgs
_MANY_EDGES = 24  # a task: what eight lanes keep in flight, but for some


class Plan:
    """Launches of a softmax over the edges of each row, or of its gradient.

    Parameters
    ----------
    rows : Rows
    dtype : torch.dtype
    width : int
        Columns, each on its own.
    backward : bool
        The gradient instead.
    """

    def __init__(self, rows: Rows, dtype: torch.dtype, width: int, backward: bool) -> None:
        self.rows, self.width = rows, width
        name, splits = NAMES[dtype], rows.splits
        few = rows.num_edges < _MANY_EDGES * splits.num_tasks
        columns = columns_for(name, width, ("row",), 1, SOFTMAX_GROUPS[0 if few else 1])
        self.unit = edge_softmax_unit(name, columns, rows.wide)
        self.which = f"{self.unit.name}_{'backward' if backward else 'forward'}"
        self.kind = torch.promote_types(dtype, torch.float32)
        self.words = 1 if backward else 2  # WORDS of the statistics
        self.operand = Operand("row", width * dtype.itemsize)
        self.blocks = grid(splits.num_tasks, columns, width)
        self.lanes = min(WARP, power_of_two(width))
        self.merge_blocks = (
            -(-rows.num_heavy // MERGED_ROWS),
            min(MAX_GRID_Y, -(-width // self.lanes)),
        )
        applied = WARPS * (WARP // columns.lanes) * depth_for(columns, 2 if backward else 1)
        self.apply_blocks = (
            -(-rows.num_edges // applied),
            min(MAX_GRID_Y, -(-width // columns.tile)),
        )
        self._first = (
            splits.tasks.data_ptr(),
            splits.num_tasks,
            rows.edge_ids,
            rows.edge_rows.data_ptr(),
            rows.num_edges,
        )

    def run(
        self, engine: DeviceEngine, value: Tensor, grad: Tensor | None = None, *,
        weighted: bool = False,
    ) -> Tensor:  # fmt: skip
        """Softmax of ``value`` over each row, or its gradient.

        Parameters
        ----------
        engine : DeviceEngine
        value : Tensor [num_edges, width]
            Contiguous and aligned: the logits; with ``grad`` the result of the forward pass.
        grad : Tensor [num_edges, width], optional
            Gradient of the result; if ``weighted`` it has been multiplied with the result.

        Returns
        -------
        Tensor [num_edges, width]
            In the caller's edge order.
        """
        splits, width = self.rows.splits, self.width
        row_stats = value.new_empty(self.rows.num_rows, width, self.words, dtype=self.kind)
        slot_stats = value.new_empty(splits.num_slots, width, self.words, dtype=self.kind)
        out = torch.empty_like(value)
        args = EDGE_SOFTMAX_ARGS.pack(
            *self._first,
            *self.operand.words(value),
            *self.operand.words(grad),
            width,
            weighted,
            out.data_ptr(),
            row_stats.data_ptr(),
            slot_stats.data_ptr(),
        )
        engine.launch(self.unit, f"{self.which}_stats", self.blocks, BLOCK, args)
        if self.rows.num_heavy:
            merge_args = EDGE_SOFTMAX_MERGE_ARGS.pack(
                splits.heavy_rows.data_ptr(),
                splits.heavy_ptr.data_ptr(),
                self.rows.num_heavy,
                width,
                self.lanes,
                slot_stats.data_ptr(),
                row_stats.data_ptr(),
            )
            entry = f"{self.which}_merge"
            engine.launch(self.unit, entry, self.merge_blocks, REDUCE_BLOCK, merge_args)
        engine.launch(self.unit, f"{self.which}_apply", self.apply_blocks, BLOCK, args)
        return out

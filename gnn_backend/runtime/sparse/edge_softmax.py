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


def edge_softmax(
    engine: DeviceEngine,
    rows: Rows,
    value: Tensor,
    grad: Tensor | None = None,
    *,
    weighted: bool = False,
) -> Tensor:
    """Softmax of ``value`` [num_edges, width] over each row, or its gradient.

    Parameters
    ----------
    engine : DeviceEngine
    rows : Rows
    value : Tensor [num_edges, width]
        Contiguous and aligned: the logits; with ``grad`` the result of the forward pass.
    grad : Tensor [num_edges, width], optional
        Gradient of the result; if ``weighted`` it has been multiplied with the result.

    Returns
    -------
    Tensor [num_edges, width]
        In the caller's edge order.
    """
    width, splits, forward = value.shape[1], rows.splits, grad is None
    name = NAMES[value.dtype]
    few = rows.num_edges < _MANY_EDGES * splits.num_tasks
    columns = columns_for(name, width, ("row",), 1, SOFTMAX_GROUPS[0 if few else 1])
    unit = edge_softmax_unit(name, columns, rows.wide)
    which = f"{unit.name}_{'forward' if forward else 'backward'}"
    kind = torch.promote_types(value.dtype, torch.float32)
    words = 2 if forward else 1  # WORDS of the statistics
    row_stats = value.new_empty(rows.num_rows, width, words, dtype=kind)
    slot_stats = value.new_empty(splits.num_slots, width, words, dtype=kind)
    out = torch.empty_like(value)
    operand = Operand("row", width * value.element_size())
    args = EDGE_SOFTMAX_ARGS.pack(
        splits.tasks.data_ptr(),
        splits.num_tasks,
        rows.edge_ids,
        rows.edge_rows.data_ptr(),
        rows.num_edges,
        *operand.words(value),
        *operand.words(grad),
        width,
        weighted,
        out.data_ptr(),
        row_stats.data_ptr(),
        slot_stats.data_ptr(),
    )
    blocks = grid(splits.num_tasks, columns, width)
    engine.launch(unit, f"{which}_stats", blocks, BLOCK, args)
    if rows.num_heavy:
        lanes = min(WARP, power_of_two(width))
        merge_args = EDGE_SOFTMAX_MERGE_ARGS.pack(
            splits.heavy_rows.data_ptr(),
            splits.heavy_ptr.data_ptr(),
            rows.num_heavy,
            width,
            lanes,
            slot_stats.data_ptr(),
            row_stats.data_ptr(),
        )
        blocks = (-(-rows.num_heavy // MERGED_ROWS), min(MAX_GRID_Y, -(-width // lanes)))
        engine.launch(unit, f"{which}_merge", blocks, REDUCE_BLOCK, merge_args)
    applied = WARPS * (WARP // columns.lanes) * depth_for(columns, 1 if forward else 2)
    blocks = (-(-rows.num_edges // applied), min(MAX_GRID_Y, -(-width // columns.tile)))
    engine.launch(unit, f"{which}_apply", blocks, BLOCK, args)
    return out

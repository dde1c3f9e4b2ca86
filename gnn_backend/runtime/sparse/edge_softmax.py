"""Launches of the softmax over the edges of each row: one, or three where rows are split."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK
from gnn_backend.runtime.plan import MAX_GRID_Y
from gnn_backend.runtime.selection import WARP
from gnn_backend.runtime.sparse.instances import REDUCE_BLOCK, edge_softmax_unit
from gnn_backend.runtime.sparse.layout import NAMES, columns_for
from gnn_backend.runtime.sparse.rows import Rows
from gnn_backend.runtime.sparse.spmm import Operand, grid

EDGE_SOFTMAX_ARGS = struct.Struct("<13q")  # EdgeSoftmaxArgs in kernels/edge_softmax.cuh
EDGE_SOFTMAX_MERGE_ARGS = struct.Struct("<3q")  # EdgeSoftmaxMergeArgs


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
    width = value.shape[1]
    name = NAMES[value.dtype]
    columns = columns_for(name, width, ("row",), 1)
    unit = edge_softmax_unit(name, columns, rows.wide)
    which = f"{unit.name}_{'forward' if grad is None else 'backward'}"
    splits, out = rows.splits, torch.empty_like(value)
    wide = torch.promote_types(value.dtype, torch.float32)
    stats = value.new_empty(splits.num_slots, 2, width, dtype=wide)

    def launch(entry: str, tasks: Tensor) -> None:
        args = EDGE_SOFTMAX_ARGS.pack(
            tasks.data_ptr(),
            len(tasks),
            rows.edge_ids,
            *Operand(value).words,
            *Operand(grad).words,
            width,
            weighted,
            out.data_ptr(),
            stats.data_ptr(),
        )
        engine.launch(unit, entry, grid(len(tasks), columns, width), BLOCK, args)

    launch(which, splits.tasks)
    if rows.num_heavy:
        args = EDGE_SOFTMAX_MERGE_ARGS.pack(splits.heavy_ptr.data_ptr(), width, stats.data_ptr())
        blocks = (rows.num_heavy, min(MAX_GRID_Y, -(-width // WARP)))
        engine.launch(unit, f"{which}_merge", blocks, REDUCE_BLOCK, args)
        launch(f"{which}_finish", rows.split_tasks)
    return out

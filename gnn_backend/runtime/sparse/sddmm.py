"""Launches of the generalised SDDMM."""

from __future__ import annotations

import struct

from torch import Tensor

from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK, Unit
from gnn_backend.runtime.sparse.instances import dot_unit, sddmm_unit
from gnn_backend.runtime.sparse.layout import NAMES, Columns, Heads, columns_for, heads_for
from gnn_backend.runtime.sparse.rows import Rows
from gnn_backend.runtime.sparse.spmm import Operand, grid

SDDMM_ARGS = struct.Struct("<13q")  # SddmmArgs in kernels/sddmm.cuh


def sddmm(
    engine: DeviceEngine,
    rows: Rows,
    op: str,
    lhs: Operand,
    rhs: Operand,
    targets: tuple[str, str],
    width: int,
    dim: int,
) -> Tensor:
    """``op(lhs, rhs)`` on every edge.

    Parameters
    ----------
    engine : DeviceEngine
    rows : Rows
        By destination.
    op : str
        A key of ``instances.OPERATORS``, or ``dot``.
    lhs, rhs : Operand
    targets : pair of {"u", "v", "e"}
        Whose rows the operands are.
    width, dim : int
        Columns of the result; columns that share a value of ``head`` access, or the length of a
        dot product, whose offsets are counted in heads.

    Returns
    -------
    Tensor [num_edges, width]
        In the caller's edge order.
    """
    first = lhs.tensor if lhs.tensor is not None else rhs.tensor
    assert first is not None
    name = NAMES[first.dtype]
    unit: Unit
    layout: Columns | Heads
    if op == "dot":
        layout = heads_for(name, width, dim)
        unit = dot_unit(name, layout, targets, rows.wide)
    else:
        accesses = (lhs.access, rhs.access)
        layout = columns_for(name, width, accesses, dim)
        # The target of an operand that is not read is not to make another kernel.
        read = tuple(t if a != "none" else "v" for a, t in zip(accesses, targets, strict=True))
        unit = sddmm_unit(op, name, layout, accesses, read, rows.wide)  # type: ignore[arg-type]
    out = first.new_empty(rows.num_edges, width)
    args = SDDMM_ARGS.pack(
        rows.splits.tasks.data_ptr(),
        rows.splits.num_tasks,
        rows.csr.indices.data_ptr(),
        rows.edge_ids,
        *lhs.words,
        *rhs.words,
        width,
        dim,
        out.data_ptr(),
    )
    engine.launch(unit, unit.name, grid(rows.splits.num_tasks, layout, width), BLOCK, args)
    return out

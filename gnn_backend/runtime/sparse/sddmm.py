"""Launches of the generalised SDDMM."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.instances import BLOCK, Unit
from gnn_backend.runtime.sparse.instances import dot_unit, sddmm_unit
from gnn_backend.runtime.sparse.layout import NAMES, Columns, Heads, columns_for, heads_for
from gnn_backend.runtime.sparse.rows import Rows
from gnn_backend.runtime.sparse.spmm import Operand, grid

SDDMM_ARGS = struct.Struct("<13q")  # SddmmArgs in kernels/sddmm.cuh


class Plan:
    """The launch of one SDDMM over the same rows, but for where its tensors lie.

    Parameters
    ----------
    rows : Rows
        By destination.
    op : str
        A key of ``instances.OPERATORS``, or ``dot``.
    dtype : torch.dtype
        Of the operands.
    lhs, rhs : Operand
    targets : pair of {"u", "v", "e"}
        Whose rows the operands are.
    width, dim : int
        Columns of the result; columns that share a value of ``head`` access, or the length of a
        dot product, whose offsets are counted in heads.
    """

    def __init__(
        self, rows: Rows, op: str, dtype: torch.dtype, lhs: Operand, rhs: Operand,
        targets: tuple[str, str], width: int, dim: int,
    ) -> None:  # fmt: skip
        self.rows, self.lhs, self.rhs, self.width = rows, lhs, rhs, width
        name = NAMES[dtype]
        layout: Columns | Heads
        if op == "dot":
            layout = heads_for(name, width, dim)
            self.unit: Unit = dot_unit(name, layout, targets, rows.wide)
        else:
            accesses = (lhs.access, rhs.access)
            layout = columns_for(name, width, accesses, dim)
            # The target of an operand that is not read is not to make another kernel.
            left, right = (
                t if a != "none" else "v" for a, t in zip(accesses, targets, strict=True)
            )
            self.unit = sddmm_unit(op, name, layout, accesses, (left, right), rows.wide)
        self.blocks = grid(rows.splits.num_tasks, layout, width)
        self._tasks = (
            rows.splits.tasks.data_ptr(),
            rows.splits.num_tasks,
            rows.csr.indices.data_ptr(),
            rows.edge_ids,
        )
        self._dim = dim

    def run(self, engine: DeviceEngine, lhs: Tensor | None, rhs: Tensor | None) -> Tensor:
        """``op(lhs, rhs)`` on every edge.

        Parameters
        ----------
        engine : DeviceEngine
        lhs, rhs : Tensor or None
            Contiguous and aligned, as the operands of the plan say.

        Returns
        -------
        Tensor [num_edges, width]
            In the caller's edge order.
        """
        first = lhs if lhs is not None else rhs
        assert first is not None
        out = first.new_empty(self.rows.num_edges, self.width)
        args = SDDMM_ARGS.pack(
            *self._tasks, *self.lhs.words(lhs), *self.rhs.words(rhs), self.width, self._dim,
            out.data_ptr(),
        )  # fmt: skip
        engine.launch(self.unit, self.unit.name, self.blocks, BLOCK, args)
        return out

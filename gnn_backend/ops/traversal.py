"""Traversals of relational programs, on whatever target takes the tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.traversal import Traversal
from gnn_backend.ops.reference import traversal as reference
from gnn_backend.ops.softmax_attention import kernel_ready
from gnn_backend.profile import note_choice
from gnn_backend.runtime import launch


def traverse(
    traversal: Traversal, relations: Relations, inputs: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """Run a traversal; without autograd.

    Parameters
    ----------
    traversal : Traversal
    relations : Relations
    inputs : sequence of Tensor
        In the order of ``traversal.inputs``, [rows, ...].
    dtype : torch.dtype
        Of the results, where there are no inputs.

    Returns
    -------
    list of Tensor
        In the order of ``traversal.outputs``, [rows, heads, dim].
    """
    dtype = inputs[0].dtype if inputs else dtype
    device = relations.device
    try:
        if device.type == "cpu" and get_config().cpu_target == "numba":
            from gnn_backend.runtime.relational import cpu

            return cpu.run(traversal, relations, inputs, dtype)
        engine = launch.sparse_engine(device, dtype)
        if dtype == torch.float64:
            raise Unsupported("dtype-float64", "the device kernels accumulate in float32")
        from gnn_backend.runtime.relational import device as kernels

        ready = [kernel_ready(x) for x in inputs]  # a view may begin between two accesses
        return kernels.run(engine, traversal, relations, ready, dtype)
    except Unsupported as missing:
        reason = missing.reason
        note_choice(lambda: f"traversal: plain torch, {reason}")
        return reference.run(traversal, relations, inputs, dtype)

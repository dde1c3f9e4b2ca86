"""Traversals of relational programs, on whatever target takes the tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnn_backend.graph.relations import Relations
from gnn_backend.ir.traversal import Traversal
from gnn_backend.ops.reference import traversal as reference


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
    return reference.run(traversal, relations, inputs)

"""Linearly projected edge features, reordered so that [E, H, D] is never written.

A projection W f of an edge's features f only ever meets a vector of a node or a parameter, or is
summed over edges: a . (W f) = (W^T a) . f, and sum_e w_e W f_e = W sum_e w_e f_e.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 4096  # rows


def edge_logits(features: Tensor, weight: Tensor, att: Tensor) -> Tensor:
    """Share [E, H] of projected edge features in the logits of GAT.

    Parameters
    ----------
    features : Tensor [E, F]
    weight : Tensor [H * D, F]
    att : Tensor [H, D] or [1, H, D]
    """
    att = att.view(att.shape[-2:])
    folded = (weight.view(*att.shape, -1) * att.unsqueeze(-1)).sum(1)
    if len(features) < 2 * _CHUNK or torch.is_autocast_enabled(features.device.type):
        return F.linear(features, folded)
    logits: Tensor = _LongLinear.apply(features, folded)
    return logits


class _LongLinear(torch.autograd.Function):
    """``F.linear`` of very many rows, whose weight's gradient is summed by chunks.

    As one product in float32 it would lose two digits that the stock layers' sums keep.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return F.linear(rows, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        of_rows = grad @ weight if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_rows, None
        whole = len(rows) // _CHUNK * _CHUNK
        parts = (table[:whole].reshape(-1, _CHUNK, table.shape[1]) for table in (grad, rows))
        left, right = parts
        of_weight = (left.mT @ right).sum(0) + grad[whole:].mT @ rows[whole:]
        return of_rows, of_weight


def edge_queries(query: Tensor, weight: Tensor) -> Tensor:
    """Queries [N, H, F] that meet raw edge features, of those [N, H, D] that meet projected ones.

    Parameters
    ----------
    query : Tensor [N, H, D]
    weight : Tensor [H * D, F]
    """
    return torch.einsum("nhd,hdf->nhf", query, weight.view(*query.shape[1:], -1))


def project_sums(sums: Tensor, weight: Tensor) -> Tensor:
    """Projection [N, H, D] of weighted sums of raw edge features.

    Parameters
    ----------
    sums : Tensor [N, H, F]
    weight : Tensor [H * D, F]
    """
    heads, width = sums.shape[1:]
    return torch.einsum("nhf,hdf->nhd", sums, weight.view(heads, -1, width))

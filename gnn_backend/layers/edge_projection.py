"""Linearly projected edge features, reordered so that [E, H, D] is never written.

A projection W f of an edge's features f only ever meets a vector of a node or a parameter, or is
summed over edges: a . (W f) = (W^T a) . f, and sum_e w_e W f_e = W sum_e w_e f_e.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
    return F.linear(features, folded)


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

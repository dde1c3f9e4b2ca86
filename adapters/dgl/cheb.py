"""DGL's ``ChebConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import dgl
import torch
from dgl import DGLGraph
from dgl.base import dgl_warning
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import call_reason, graph_only, one_table
from gnn_backend.adapters.dgl.attention import LINEAR
from gnn_backend.adapters.dgl.filters import NARROWER
from gnn_backend.layers.normalization import symmetric
from gnn_backend.layers.polynomial import Laplacian, chebyshev, chebyshev_mapped
from gnn_backend.layers.projection import projection_of


def eligible(conv: Any, graph: Any, feat: Any, lambda_max: Any = None) -> str | None:
    """Reason code why this call of ``ChebConv.forward`` has no fused path, or None."""
    x = one_table(graph, feat, dims=2)
    if x is None:
        return "input-form"
    reason = static_reason(conv) or call_reason(
        graph,
        (x,),
        (conv.linear.weight,),
        plain_sum=NARROWER * conv._out_feats > x.shape[1],
    )
    if reason is not None or lambda_max is None or type(lambda_max) is list:
        return reason
    fits = isinstance(lambda_max, Tensor) and lambda_max.numel() == graph.batch_size
    if not fits or lambda_max.dim() not in (1, 2) or lambda_max.shape[0] != graph.batch_size:
        return "input-form"
    return call_reason(graph, (x, lambda_max))


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return None if conv._k > 1 else "no-operators"


def fast(
    conv: Any, graph: DGLGraph, feat: Tensor, lambda_max: Tensor | list[float] | None = None
) -> Tensor:
    """Fused ``ChebConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.ChebConv
    graph : DGLGraph
        Homogeneous, maybe a batch.
    feat : Tensor [N, F]
    lambda_max : Tensor [B] or [B, 1], or list of float, optional
        Largest eigenvalue of each graph's Laplacian; 2 by default, with a warning as in stock.

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    structure = graph_only(graph)
    if lambda_max is None:
        dgl_warning("ChebConv takes 2 for the largest eigenvalue, since lambda_max is not given; "
                    "dgl.laplacian_lambda_max computes it.")  # fmt: skip
        lambda_max = [2.0] * graph.batch_size
    if isinstance(lambda_max, list):
        lambda_max = torch.tensor(lambda_max).to(feat)
    factor = 2.0 / dgl.broadcast_nodes(graph, lambda_max.view(-1, 1)).view(-1)
    laplacian = Laplacian(symmetric(structure, feat.dtype, source="dst"), factor)
    linear = projection_of(conv.linear, LINEAR, feat.dtype, conv._out_feats)
    out = None
    if linear is not None and linear.weight.shape[1] == conv._k * feat.shape[1]:
        out = chebyshev_mapped(laplacian, feat, conv._k, linear)
    if out is None:
        out = conv.linear(chebyshev(laplacian, feat, conv._k))
    return conv.activation(out) if conv.activation else out

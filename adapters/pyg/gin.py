"""PyG's ``GINConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    layer_reason,
    messages_bytes,
    plain_graph,
    propagated,
)
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_METHODS = origins(
    "torch_geometric.nn.conv.gin_conv", "GINConv", "message", "message_and_aggregate"
)


def eligible(conv: Any, x: Any, edge_index: Any, size: Any = None) -> str | None:
    """Reason code why this call of ``GINConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or call_reason(conv, x, edge_index, size=size)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return layer_reason(conv, _METHODS)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any, size: Any = None) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak."""
    return messages_bytes(x, edge_index, weighted=False)


def fast(
    conv: Any,
    x: Tensor | tuple[Tensor, Tensor | None],
    edge_index: Any,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Fused ``GINConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.GINConv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst] or None
    edge_index : Tensor [2, E] or EdgeIndex
    size : (num_src, num_dst), optional

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    """
    adjacency = ScaledAdjacency(plain_graph(conv, x, edge_index, size))
    x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
    out = propagated(conv, adjacency, x_src)
    if x_dst is not None:
        own = 1 + conv.eps
        same = out.dtype is x_dst.dtype is own.dtype
        out = torch.addcmul(out, own, x_dst) if same else out + own * x_dst
    result: Tensor = conv.nn(out)
    return result

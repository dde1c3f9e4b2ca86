"""PyG's ``LEConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    layer_reason,
    messages_bytes,
    plain_graph,
)
from gnn_backend.adapters.pyg.message_passing import origins, sums_reason
from gnn_backend.layers.le import le
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_METHODS = origins("torch_geometric.nn.conv.le_conv", "LEConv", "message")


def eligible(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``LEConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or _call_reason(conv, x, edge_index, edge_weight)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return layer_reason(conv, _METHODS, aggregation=sums_reason)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak."""
    return messages_bytes(x, edge_index, conv.out_channels, weighted=True)


def fast(
    conv: Any, x: Tensor | tuple[Tensor, Tensor], edge_index: Any, edge_weight: Tensor | None = None
) -> Tensor:
    """Fused ``LEConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.LEConv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
    edge_index : Tensor [2, E] or EdgeIndex
    edge_weight : Tensor [E], optional

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    """
    x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
    a, b = conv.lin1(x_src), conv.lin2(x_dst)
    if edge_weight is not None:
        dtype = torch.promote_types(a.dtype, edge_weight.dtype)
        a, b, edge_weight = a.to(dtype), b.to(dtype), edge_weight.to(dtype)
    out = le(ScaledAdjacency(plain_graph(conv, x, edge_index), edge_weight), a, b)
    return out + conv.lin3(x_dst)


def _call_reason(conv: Any, x: Any, edge_index: Any, edge_weight: Any) -> str | None:
    if isinstance(x, (tuple, list)) and (len(x) != 2 or x[1] is None):
        return "input-form"
    return call_reason(conv, x, edge_index, edge_weight)

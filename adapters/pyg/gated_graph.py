"""PyG's ``GatedGraphConv``: which calls run fused, and the fused forward."""

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
from gnn_backend.errors import invalid
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_METHODS = origins(
    "torch_geometric.nn.conv.gated_graph_conv", "GatedGraphConv", "message", "message_and_aggregate"
)


def eligible(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``GatedGraphConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or _call_reason(conv, x, edge_index, edge_weight)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return layer_reason(conv, _METHODS)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak."""
    return messages_bytes(x, edge_index, conv.out_channels, weighted=edge_weight is not None)


def fast(conv: Any, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
    """Fused ``GatedGraphConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.GatedGraphConv
    x : Tensor [N, F]
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
    adjacency = ScaledAdjacency(plain_graph(conv, x, edge_index), edge_weight)
    if x.shape[-1] < conv.out_channels:
        x = torch.nn.functional.pad(x, (0, conv.out_channels - x.shape[-1]))
    for number in range(conv.num_layers):
        m = torch.matmul(x, conv.weight[number])
        x = conv.rnn(propagated(conv, adjacency, m), x)
    return x


def _call_reason(conv: Any, x: Any, edge_index: Any, edge_weight: Any) -> str | None:
    if isinstance(x, Tensor) and x.dim() == 2 and x.shape[-1] > conv.out_channels:
        raise invalid("x", "too wide", x.shape[-1], f"at most {conv.out_channels} columns")
    return call_reason(conv, x, edge_index, edge_weight, pairs=False)

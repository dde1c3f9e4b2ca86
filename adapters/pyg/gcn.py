"""PyG's ``GCNConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    layer_reason,
    messages_bytes,
    plain_graph,
    propagated_linear,
)
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.normalization import cached_adjacency, gcn_adjacency
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_METHODS = origins(
    "torch_geometric.nn.conv.gcn_conv", "GCNConv", "message", "message_and_aggregate"
)


def eligible(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``GCNConv.forward`` has no fused path, or None.

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
    return messages_bytes(x, edge_index, conv.out_channels, weighted=True)


def fast(conv: Any, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
    """Fused ``GCNConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.GCNConv
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
    if not conv.normalize:
        adjacency = ScaledAdjacency(plain_graph(conv, x, edge_index), edge_weight)
    elif conv.cached:
        adjacency = cached_adjacency(conv, x, edge_index, edge_weight)
    else:
        adjacency = gcn_adjacency(
            conv, x, edge_index, edge_weight, self_loops=conv.add_self_loops, improved=conv.improved
        )
    return propagated_linear(conv, adjacency, x, conv.lin, behind=False, bias=conv.bias)


def _call_reason(conv: Any, x: Any, edge_index: Any, edge_weight: Any) -> str | None:
    loops = bool(conv.normalize and conv.add_self_loops)
    return call_reason(conv, x, edge_index, edge_weight, self_loops=loops, pairs=False)

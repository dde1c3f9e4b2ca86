"""PyG's ``APPNP``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    is_of,
    layer_reason,
    messages_bytes,
    plain_graph,
    propagated,
)
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.normalization import cached_adjacency, gcn_adjacency
from gnn_backend.adapters.pyg.reductions import kind_of
from gnn_backend.layers.polynomial import personalized_pagerank
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_METHODS = origins("torch_geometric.nn.conv.appnp", "APPNP", "message", "message_and_aggregate")


def eligible(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``APPNP.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or _call_reason(conv, x, edge_index, edge_weight)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return layer_reason(conv, _METHODS) or ("no-operators" if conv.K < 1 else None)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak."""
    return messages_bytes(x, edge_index, weighted=True)


def fast(conv: Any, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
    """Fused ``APPNP.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.APPNP
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
    drops = bool(conv.dropout > 0 and conv.training)
    if not conv.normalize:
        adjacency = ScaledAdjacency(plain_graph(conv, x, edge_index), edge_weight)
    elif conv.cached:
        adjacency = cached_adjacency(conv, x, edge_index, edge_weight, stream=not drops)
    else:
        adjacency = gcn_adjacency(
            conv, x, edge_index, edge_weight, self_loops=conv.add_self_loops, stream=not drops
        )
    if kind_of(conv.aggr_module) == "sum" and not drops and is_of(adjacency, x.dtype):
        return personalized_pagerank(adjacency, x, conv.K, conv.alpha)
    start = x
    for _ in range(conv.K):
        if drops:
            adjacency = _dropped(adjacency, conv.dropout)
        x = propagated(conv, adjacency, x)
        x = x * (1 - conv.alpha) + conv.alpha * start
    return x


def _dropped(adjacency: ScaledAdjacency, p: float) -> ScaledAdjacency:
    """Weights dropped as stock drops them: in the caller's edge order, and again in each step."""
    weight = adjacency.weight
    if weight is None:
        factors = adjacency.dst
        assert factors is not None
        weight = torch.ones(adjacency.graph.num_edges, dtype=factors.dtype, device=factors.device)
    return adjacency._replace(weight=dropout(weight, p=p))


def _call_reason(conv: Any, x: Any, edge_index: Any, edge_weight: Any) -> str | None:
    if edge_weight is None and not conv.normalize and conv.dropout > 0 and conv.training:
        return "edge-features"  # stock asks for weights to drop
    loops = bool(conv.normalize and conv.add_self_loops)
    return call_reason(conv, x, edge_index, edge_weight, self_loops=loops, pairs=False)

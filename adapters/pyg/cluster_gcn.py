"""PyG's ``ClusterGCNConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    is_reversed,
    layer_reason,
    messages_bytes,
    propagated_linear,
)
from gnn_backend.adapters.pyg.attention import rewritten
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.normalization import kept_with_graph, sums_factored
from gnn_backend.layers.normalization import degree_factors
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_METHODS = origins(
    "torch_geometric.nn.conv.cluster_gcn_conv", "ClusterGCNConv", "message", "message_and_aggregate"
)


def eligible(conv: Any, x: Any, edge_index: Any) -> str | None:
    """Reason code why this call of ``ClusterGCNConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or _call_reason(conv, x, edge_index)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return layer_reason(conv, _METHODS)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak."""
    return messages_bytes(x, edge_index, weighted=True)


def fast(conv: Any, x: Tensor, edge_index: Any) -> Tensor:
    """Fused ``ClusterGCNConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.ClusterGCNConv
    x : Tensor [N, F]
    edge_index : Tensor [2, E] or EdgeIndex

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    """
    adjacency = _adjacency(conv, x, edge_index)
    out = propagated_linear(conv, adjacency, x, conv.lin_out, behind=True)
    return out + conv.lin_root(x)


def _call_reason(conv: Any, x: Any, edge_index: Any) -> str | None:
    return call_reason(conv, x, edge_index, self_loops=bool(conv.add_self_loops), pairs=False)


def _adjacency(conv: Any, x: Tensor, edge_index: Any) -> ScaledAdjacency:
    """Inverse degrees, those of self-loops enlarged; they depend on the edges alone."""
    nodes = x.shape[0]
    reverse = is_reversed(conv)
    variant = Variant(nodes, nodes, bool(conv.add_self_loops), reverse)
    graph = graph_of(edge_index, variant)
    if conv.add_self_loops and not conv.diag_lambda and sums_factored(conv, x.dtype):
        # Of the nodes that edge_index[1] names, whatever the flow, and in float32, as in PyG.
        if reverse:
            return ScaledAdjacency(graph, src=degree_factors(graph, "src", -1.0, torch.float32))
        return ScaledAdjacency(graph, dst=degree_factors(graph, "dst", -1.0, torch.float32))

    def compute() -> ScaledAdjacency:
        edges, _ = rewritten(edge_index, None, variant, None)
        row, col = edges[0].long(), edges[1].long()
        degree = torch.zeros(nodes, device=x.device).index_add_(
            0, col, torch.ones(col.numel(), device=x.device)
        )
        inverse = 1.0 / degree.clamp_(1.0)
        weight = inverse[col]
        weight[row == col] += conv.diag_lambda * inverse  # one loop a node, or stock's error
        return ScaledAdjacency(graph, weight)

    return kept_with_graph(graph, ("cluster gcn", float(conv.diag_lambda)), compute)

"""PyG's ``TAGConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    layer_reason,
    messages_bytes,
    plain_graph,
    propagated,
    side_by_side,
)
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.normalization import gcn_adjacency
from gnn_backend.layers.polynomial import powers_mapped
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_METHODS = origins(
    "torch_geometric.nn.conv.tag_conv", "TAGConv", "message", "message_and_aggregate"
)


def eligible(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``TAGConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or call_reason(conv, x, edge_index, edge_weight, pairs=False)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return layer_reason(conv, _METHODS)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak."""
    return messages_bytes(x, edge_index, weighted=True)


def fast(conv: Any, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
    """Fused ``TAGConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.TAGConv
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
    if conv.normalize:
        adjacency = gcn_adjacency(conv, x, edge_index, edge_weight, self_loops=False)
    else:
        adjacency = ScaledAdjacency(plain_graph(conv, x, edge_index), edge_weight)
    maps = side_by_side(conv, adjacency, x, conv.lins, conv.bias)
    if maps is not None and conv.K > 0:
        found = powers_mapped(adjacency, x, conv.K, *maps)
        if found is not None:
            return found
    out: Tensor = conv.lins[0](x)
    for lin in conv.lins[1:]:
        x = propagated(conv, adjacency, x)
        out = out + lin.forward(x)
    return out if conv.bias is None else out + conv.bias

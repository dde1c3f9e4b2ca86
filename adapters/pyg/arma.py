"""PyG's ``ARMAConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import dropout

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    layer_reason,
    messages_bytes,
    propagated,
)
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.normalization import gcn_adjacency
from gnn_backend.adapters.pyg.reductions import is_channelwise

_METHODS = origins(
    "torch_geometric.nn.conv.arma_conv", "ARMAConv", "message", "message_and_aggregate"
)


def eligible(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``ARMAConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or call_reason(conv, x, edge_index, edge_weight, pairs=False)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    reason = layer_reason(conv, _METHODS)
    return reason or (None if is_channelwise(conv.aggr_module) else "aggregation")


def edgewise_bytes(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> int:
    """Bytes of [K, E, F] tensors that the stock forward holds at its peak."""
    width = conv.num_stacks * conv.out_channels
    return messages_bytes(x, edge_index, width, weighted=True)


def fast(conv: Any, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
    """Fused ``ARMAConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.ARMAConv
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

    Notes
    -----
    Stacks lie side by side in a node's row, so that a neighbour's are read at once. The activation
    sees them as in PyG, [K, N, D].
    """
    adjacency = gcn_adjacency(conv, x, edge_index, edge_weight, self_loops=False)
    stacked = x.unsqueeze(-3)  # [1, N, F], as stock drops it
    out = stacked
    for t in range(conv.num_layers):
        number = 0 if conv.shared_weights else t
        out = out @ (conv.init_weight if t == 0 else conv.weight[max(number - 1, 0)])
        rows = propagated(conv, adjacency, out.transpose(0, 1).contiguous())
        root = dropout(stacked, p=conv.dropout, training=conv.training)
        out = rows.transpose(0, 1) + root @ conv.root_weight[number]
        if conv.bias is not None:
            out = out + conv.bias[number]
        if conv.act is not None:
            out = conv.act(out)
    return out.mean(dim=-3)

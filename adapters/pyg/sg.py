"""PyG's ``SGConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    commuting,
    layer_reason,
    messages_bytes,
    propagated,
    propagated_linear,
)
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.normalization import gcn_adjacency
from gnn_backend.adapters.pyg.reductions import kind_of
from gnn_backend.layers.polynomial import power_mapped

_METHODS = origins("torch_geometric.nn.conv.sg_conv", "SGConv", "message", "message_and_aggregate")


def eligible(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``SGConv.forward`` has no fused path, or None.

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
    """Fused ``SGConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.SGConv
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
    if conv._cached_x is not None:
        return conv.lin(conv._cached_x.detach())  # type: ignore[no-any-return]
    adjacency = gcn_adjacency(conv, x, edge_index, edge_weight, self_loops=conv.add_self_loops)
    if kind_of(conv.aggr_module) == "sum" and not conv.cached:
        found = commuting(conv, adjacency, x, conv.lin)
        if found is not None:
            return power_mapped(adjacency, x, conv.K, found)
    for _ in range(conv.K - 1 + bool(conv.cached)):
        x = propagated(conv, adjacency, x)
    if conv.cached:
        conv._cached_x = x
        return conv.lin(x)  # type: ignore[no-any-return]
    return propagated_linear(conv, adjacency, x, conv.lin, behind=True)


def _call_reason(conv: Any, x: Any, edge_index: Any, edge_weight: Any) -> str | None:
    return call_reason(
        conv, x, edge_index, edge_weight, self_loops=bool(conv.add_self_loops), pairs=False
    )

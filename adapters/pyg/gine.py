"""PyG's ``GINEConv``: which calls run fused, and the fused forward."""

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
from gnn_backend.adapters.pyg.attention import edge_wise_reason
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.reductions import reduce_by
from gnn_backend.errors import invalid

_METHODS = origins("torch_geometric.nn.conv.gin_conv", "GINEConv", "message")


def eligible(
    conv: Any, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None
) -> str | None:
    """Reason code why this call of ``GINEConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    reason = static_reason(conv) or call_reason(conv, x, edge_index, size=size)
    if reason is not None:
        return reason
    first = x if isinstance(x, Tensor) else x[0]
    if edge_attr is None:
        return "edge-features"  # which the layer cannot do without, as stock says
    reason = edge_wise_reason(edge_index, edge_attr, False, first.device)
    if reason is None and edge_attr.dim() != 2:
        return "edge-features"
    if reason is None and conv.lin is None and edge_attr.shape[1] != first.shape[1]:
        raise invalid("edge_attr", "wrong width", tuple(edge_attr.shape), f"[E, {first.shape[1]}]")
    return reason


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return layer_reason(conv, _METHODS)


def edgewise_bytes(
    conv: Any, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None
) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak.

    Sources, their sum with the features, and its positive part; the features are ours as well.
    """
    return 3 * messages_bytes(x, edge_index, weighted=False)


def fast(
    conv: Any,
    x: Tensor | tuple[Tensor, Tensor | None],
    edge_index: Any,
    edge_attr: Tensor,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Fused ``GINEConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.GINEConv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst] or None
    edge_index : Tensor [2, E] or EdgeIndex
    edge_attr : Tensor [E, F_edge]
    size : (num_src, num_dst), optional

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    """
    graph = plain_graph(conv, x, edge_index, size)
    x_src, x_dst = (x, x) if isinstance(x, Tensor) else x
    edge = edge_attr if conv.lin is None else conv.lin(edge_attr)
    dtype = torch.promote_types(x_src.dtype, edge.dtype)
    out = reduce_by(conv.aggr_module, graph, x_src.to(dtype), edge.to(dtype), "add_relu")
    if x_dst is not None:
        out = out + (1 + conv.eps) * x_dst
    result: Tensor = conv.nn(out)
    return result

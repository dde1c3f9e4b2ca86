"""PyG's ``TransformerConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.attention import (
    dropout_of,
    edge_reason,
    edge_wise_reason,
    feature_reason,
    heads_of,
    message_dtype,
    plain_weight,
    settings_reason,
)
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, num_edges
from gnn_backend.adapters.pyg.message_passing import changed_reason, origins
from gnn_backend.errors import invalid
from gnn_backend.layers.transformer import gated_sum, transformer

_METHODS = origins("torch_geometric.nn.conv.transformer_conv", "TransformerConv", "message")


def eligible(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    return_attention_weights: Any = None,
) -> str | None:
    """Reason code why this call of ``TransformerConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The edges are something that the stock layer rejects with its own error.
    """
    weight = conv.lin_key.weight
    device = weight.device
    reason = static_reason(conv) or feature_reason(x, device, weight.dtype)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return "compiled"
    square = isinstance(x, Tensor) or x[0].shape[0] == x[1].shape[0]
    reason = edge_reason(conv, edge_index, device, self_loops=False, square=square)
    if reason is not None:
        return reason
    returns = isinstance(return_attention_weights, bool)
    reason = edge_wise_reason(edge_index, edge_attr, returns, device)
    if reason is not None:
        return reason
    if edge_attr is None:
        if conv.lin_edge is not None:
            raise invalid("edge_attr", "not given to a layer with edge_dim", None, "a tensor")
        return None
    # Without a projection they are added to the messages, by whatever broadcasting does.
    return "edge-features" if conv.lin_edge is None or edge_attr.dim() != 2 else None


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return settings_reason(conv) or changed_reason(conv, _METHODS)


def edgewise_bytes(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    return_attention_weights: Any = None,
) -> int:
    """Bytes of [E, H, C] tensors that the stock forward holds at its peak.

    Five of them: gathered queries, keys and values, the product in the score, and the messages;
    with edge features three more, the projected ones and the sums with keys and values.
    """
    held = 8 if edge_attr is not None else 5
    row = conv.heads * conv.out_channels * conv.lin_key.weight.element_size()
    return held * num_edges(edge_index) * row


def fast(
    conv: Any,
    x: Tensor | tuple[Tensor, Tensor],
    edge_index: Any,
    edge_attr: Tensor | None = None,
    return_attention_weights: bool | None = None,
) -> Any:
    """Fused ``TransformerConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.TransformerConv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
    edge_index : Tensor [2, E], EdgeIndex, sparse COO or CSR Tensor, or SparseTensor
    edge_attr : Tensor [E, F_edge], optional
    return_attention_weights : bool, optional
        The weights are those before dropout, as in the stock layer.

    Returns
    -------
    Tensor [N, H * C] (``concat``) or [N, C]
        With the weights, if asked for, a tuple of it and (edge_index, [E, H]).

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    Unsupported
        The operator has no kernel for these operands.
    """
    h_src, h_dst = (x, x) if isinstance(x, Tensor) else x
    reverse = conv.flow == "target_to_source"
    graph = graph_of(edge_index, Variant(h_src.shape[0], h_dst.shape[0], False, reverse))
    shape = (-1, conv.heads, conv.out_channels)
    query = conv.lin_query(h_dst).view(shape)
    key = conv.lin_key(h_src).view(shape)
    value = conv.lin_value(h_src).view(shape)
    features = weight = None
    if edge_attr is not None:
        features, weight = _edge_features(conv, edge_attr)
    given = [query, key, value] if features is None else [query, key, value, features]
    dtype = message_dtype(query.device, *given)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    options: dict[str, Any] = {"heads": heads_of(conv), "edge_weight": weight}
    skip, gate = conv.lin_skip(h_dst) if conv.root_weight else None, conv.lin_beta
    if features is not None:
        options["edge_features"] = features.to(dtype)
    returns, dropout = isinstance(return_attention_weights, bool), dropout_of(conv)
    attention = None
    if returns and dropout > 0.0:  # the weights before dropout
        attention = transformer(graph, query, key, value, return_attention=True, **options)[1]
    out = transformer(
        graph, query, key, value, dropout_p=dropout, residual=skip if gate is None else None,
        return_attention=returns and attention is None, **options,
    )  # fmt: skip
    if isinstance(out, tuple):
        out, attention = out
    if skip is not None and gate is not None:
        out = gated_sum(out, skip, gate)
    return (out, (edge_index, attention)) if returns else out


def _edge_features(conv: Any, edge_attr: Tensor) -> tuple[Tensor, Tensor | None]:
    """Raw features and their weight, or projected ones [E, H, C] if the module must be called."""
    width = conv.heads * conv.out_channels
    weight = plain_weight(conv.lin_edge, edge_attr, width)
    if weight is not None:
        return edge_attr, weight
    return conv.lin_edge(edge_attr).view(-1, conv.heads, conv.out_channels), None

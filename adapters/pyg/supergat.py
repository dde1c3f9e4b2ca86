"""PyG's ``SuperGATConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.attention import (
    dropout_of,
    edge_reason,
    feature_reason,
    heads_of,
    message_dtype,
    own,
    rewritten,
    settings_reason,
)
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list, num_edges
from gnn_backend.adapters.pyg.message_passing import changed_reason, origins
from gnn_backend.layers.supergat import supergat

_METHODS = origins("torch_geometric.nn.conv.supergat_conv", "SuperGATConv", "message")
_OWN = ("get_attention", "positive_sampling", "negative_sampling")


def eligible(
    conv: Any, x: Any, edge_index: Any, neg_edge_index: Any = None, batch: Any = None
) -> str | None:
    """Reason code why this call of ``SuperGATConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The edges are something that the stock layer rejects with its own error.
    """
    if not isinstance(x, Tensor):
        return "input-form"
    weight = conv.lin.weight
    reason = static_reason(conv) or feature_reason(x, weight.device, weight.dtype)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return "compiled"
    if not is_edge_list(edge_index):
        return "graph-type"
    loops = bool(conv.add_self_loops)
    return edge_reason(conv, edge_index, weight.device, self_loops=loops, square=True)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    mixed = conv.attention_type == "MX"
    shape = (1, conv.heads, conv.out_channels)
    for name in ("att_l", "att_r"):
        att = own(conv, name)
        if (att is None) == mixed or (mixed and att.shape != shape):
            return "parametrized"
    module = "torch_geometric.nn.conv.supergat_conv"
    if any(getattr(type(conv), n).__module__ != module or n in conv.__dict__ for n in _OWN):
        return "overridden-message"
    return settings_reason(conv) or changed_reason(conv, _METHODS)


def edgewise_bytes(
    conv: Any, x: Any, edge_index: Any, neg_edge_index: Any = None, batch: Any = None
) -> int:
    """Bytes of [E, H, C] tensors that the stock forward holds at its peak.

    Five of them: both ends, their product, the products with the attention vectors, the messages.
    """
    row = conv.heads * conv.out_channels * conv.lin.weight.element_size()
    return 5 * num_edges(edge_index) * row


def fast(
    conv: Any,
    x: Tensor,
    edge_index: Tensor,
    neg_edge_index: Tensor | None = None,
    batch: Tensor | None = None,
) -> Tensor:
    """Fused ``SuperGATConv.forward`` for a call that :func:`eligible` accepts.

    In training the layer's attention loss is prepared by its own methods, from edges that it
    samples.

    Parameters
    ----------
    conv : torch_geometric.nn.SuperGATConv
    x : Tensor [N, F]
    edge_index : Tensor [2, E] or EdgeIndex
    neg_edge_index : Tensor [2, E_neg], optional
    batch : Tensor [N], optional

    Returns
    -------
    Tensor [N, H * C] (``concat``) or [N, C]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    Unsupported
        The operator has no kernel for these operands.
    """
    reverse = conv.flow == "target_to_source"
    variant = Variant(x.shape[0], x.shape[0], bool(conv.add_self_loops), reverse)
    graph = graph_of(edge_index, variant)
    projected = conv.lin(x).view(-1, conv.heads, conv.out_channels)
    att_l, att_r = own(conv, "att_l"), own(conv, "att_r")
    mixed = [t for t in (projected, att_l, att_r) if t is not None]
    out = supergat(
        graph, projected.to(message_dtype(x.device, *mixed)), att_l, att_r,
        negative_slope=float(conv.negative_slope), dropout_p=dropout_of(conv),
        heads=heads_of(conv), bias=conv.bias,
    )  # fmt: skip
    if conv.training:
        edges, _ = rewritten(edge_index, None, variant, None)
        _prepare_loss(conv, projected, edges, neg_edge_index, batch)
    return out


def _prepare_loss(
    conv: Any, x: Tensor, edges: Tensor, negative: Tensor | None, batch: Tensor | None
) -> None:
    """Set what ``get_attention_loss`` reads: logits of sampled edges and of others, and labels."""
    positive = conv.positive_sampling(edges)
    if negative is None:
        negative = conv.negative_sampling(edges, x.shape[0], batch)
    logits = [
        conv.get_attention(
            edge_index_i=ends[1], x_i=x[ends[1]], x_j=x[ends[0]], num_nodes=x.shape[0],
            return_logits=True,
        )
        for ends in (positive, negative)
    ]  # fmt: skip
    conv.att_x = torch.cat(logits, dim=0)
    conv.att_y = conv.att_x.new_zeros(conv.att_x.shape[0])
    conv.att_y[: positive.shape[1]] = 1.0

"""PyG's ``GATConv`` and ``FusedGATConv``: which calls run fused, and the fused forwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.attention import (
    as_columns,
    dropout_of,
    edge_reason,
    edge_wise_reason,
    feature_reason,
    heads_of,
    message_dtype,
    own,
    plain_weight,
    rewritten,
    settings_reason,
)
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list, num_edges
from gnn_backend.adapters.pyg.message_passing import changed_reason, origins
from gnn_backend.errors import invalid
from gnn_backend.layers.edge_projection import edge_logits
from gnn_backend.layers.gat import gat

_METHODS = origins("torch_geometric.nn.conv.gat_conv", "GATConv", "message", "edge_update")


def eligible(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    size: Any = None,
    return_attention_weights: Any = None,
) -> str | None:
    """Reason code why this call of ``GATConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The edges are something that the stock layer rejects with its own error.
    """
    att = own(conv, "att_src")
    device = att.device
    reason = static_reason(conv) or feature_reason(_given(x), device, att.dtype)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return "compiled"
    sizes = _sizes(x, size)
    if sizes is None:
        return "input-form"
    square = sizes[0] == sizes[1]
    reason = edge_reason(conv, edge_index, device, self_loops=conv.add_self_loops, square=square)
    if reason is not None:
        return reason
    if conv.add_self_loops and not is_edge_list(edge_index):
        if conv.edge_dim is not None:
            return "edge-features"
        if not isinstance(conv.fill_value, (str, float, int)):
            return "fill-value"
    if conv.lin_edge is None and not conv.add_self_loops:
        edge_attr = None  # which stock does not look at either
    return edge_wise_reason(edge_index, edge_attr, bool(return_attention_weights), device)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    shape = (1, conv.heads, conv.out_channels)
    for name in ("att_src", "att_dst", "att_edge"):
        att = own(conv, name)
        if att is not None and att.shape != shape:
            return "parametrized"
    return settings_reason(conv) or changed_reason(conv, _METHODS)


def _given(x: Any) -> Any:
    """Features that are there: of a pair, the destinations' may be None."""
    return x[:1] if isinstance(x, (tuple, list)) and len(x) == 2 and x[1] is None else x


def _sizes(x: Any, size: Any) -> tuple[int, int] | None:
    """Sources and destinations, or None where only the edges would tell."""
    if isinstance(x, Tensor):
        found = (x.shape[0], x.shape[0])
    elif x[1] is not None:
        found = (x[0].shape[0], x[1].shape[0])
    elif size is None:
        return None
    else:
        found = (x[0].shape[0], size[1])
    if size is not None and tuple(size) != found:
        raise invalid("size", "not that of the features", size, found)
    return found


def edgewise_bytes(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    size: Any = None,
    return_attention_weights: Any = None,
) -> int:
    """Bytes of [E, H, C] tensors that the stock forward holds at its peak.

    Two of them: the gathered sources and the messages; with edge features two more, the
    projected features and their product with the attention vector.
    """
    att = own(conv, "att_src")
    held = 4 if edge_attr is not None and conv.lin_edge is not None else 2
    return held * num_edges(edge_index) * att.numel() * att.element_size()


def fast(
    conv: Any,
    x: Tensor | tuple[Tensor, Tensor | None],
    edge_index: Any,
    edge_attr: Tensor | None = None,
    size: tuple[int, int] | None = None,
    return_attention_weights: bool | None = None,
) -> Any:
    """Fused ``GATConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.GATConv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst] or None
    edge_index : Tensor [2, E], EdgeIndex, sparse COO or CSR Tensor, or SparseTensor
    edge_attr : Tensor [E, F_edge] or [E], optional
    size : (num_src, num_dst), optional
    return_attention_weights : bool, optional

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
    sizes = _sizes(x, size)
    assert sizes is not None
    fills = conv.add_self_loops and not is_edge_list(edge_index)
    fill_value = conv.fill_value if fills else None
    reverse = conv.flow == "target_to_source"
    variant = Variant(*sizes, bool(conv.add_self_loops), reverse, fill_value)
    graph = graph_of(edge_index, variant)
    residual, x_src, x_dst = _project(conv, x)
    edge_logit = None
    uses_edges = edge_attr is not None and conv.lin_edge is not None
    if uses_edges or return_attention_weights:
        features = edge_attr if uses_edges else None
        edge_index, features = rewritten(edge_index, features, variant, conv.fill_value)
        if features is not None:
            edge_logit = _edge_logit(conv, as_columns(features))
    att_src, att_dst = own(conv, "att_src"), own(conv, "att_dst")
    mixed = [t for t in (x_src, x_dst, att_src, att_dst, edge_logit) if t is not None]
    dtype = message_dtype(att_src.device, *mixed)
    found = gat(
        graph, x_src.to(dtype), None if x_dst is None else x_dst.to(dtype), att_src, att_dst,
        negative_slope=float(conv.negative_slope), edge_logit=edge_logit,
        dropout_p=dropout_of(conv), heads=heads_of(conv), residual=residual, bias=conv.bias,
        return_attention=bool(return_attention_weights),
    )  # fmt: skip
    return (found[0], (edge_index, found[1])) if return_attention_weights else found


def _project(conv: Any, x: Any) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Residual, projected sources and destinations [N, H, C], called in the stock order."""
    shape = (-1, conv.heads, conv.out_channels)
    h_src, h_dst = (x, x) if isinstance(x, Tensor) else x
    residual = None if conv.res is None or h_dst is None else conv.res(h_dst)
    if conv.lin is not None and h_dst is h_src:
        x_src = conv.lin(h_src).view(shape)
        return residual, x_src, x_src
    to_src, to_dst = (conv.lin_src, conv.lin_dst) if conv.lin is None else (conv.lin, conv.lin)
    x_src = to_src(h_src).view(shape)
    return residual, x_src, None if h_dst is None else to_dst(h_dst).view(shape)


def _edge_logit(conv: Any, features: Any) -> Tensor:
    """Share of the edge features in the logits [E, H]."""
    att = own(conv, "att_edge")
    weight = plain_weight(conv.lin_edge, features, att.numel())
    if weight is not None:
        return edge_logits(features, weight, att)
    projected = conv.lin_edge(features).view(-1, conv.heads, conv.out_channels)
    return (projected * att).sum(-1)  # type: ignore[no-any-return]

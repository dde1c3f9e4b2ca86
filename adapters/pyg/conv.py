"""PyG's ``GATv2Conv``: which calls run fused, and the fused forward.

The seam is the class's ``forward``: class, parameters, ``state_dict`` and pickles stay stock.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg import compiled
from gnn_backend.adapters.pyg.attention import (
    as_columns,
    dropout_of,
    edge_reason,
    edge_wise_reason,
    feature_reason,
    heads_of,
    message_dtype,
    own,
    projections,
    rewritten,
    settings_reason,
    sums_plainly,
)
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list, num_edges
from gnn_backend.adapters.pyg.message_passing import changed_reason, origins
from gnn_backend.errors import invalid
from gnn_backend.layers.combination import combine
from gnn_backend.layers.gatv2 import gatv2, projected_gatv2

_METHODS = origins("torch_geometric.nn.conv.gatv2_conv", "GATv2Conv", "message", "edge_update")


def eligible(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    return_attention_weights: Any = None,
) -> str | None:
    """Reason code why this call of ``GATv2Conv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The edges are something that the stock layer rejects with its own error.
    """
    att = own(conv, "att")
    device = att.device
    reason = _layer_reason(conv, att) or feature_reason(x, device, att.dtype)
    if reason is not None:
        return reason
    square = isinstance(x, Tensor) or x[0].shape[0] == x[1].shape[0]
    reason = edge_reason(conv, edge_index, device, self_loops=conv.add_self_loops, square=square)
    if reason is not None:
        return reason
    if _fills_values(conv, edge_index):
        if not isinstance(edge_index, Tensor) and conv.edge_dim is not None:
            return "edge-features"
        if not isinstance(conv.fill_value, (str, float, int)):
            return "fill-value"
    if edge_attr is None and not return_attention_weights:
        return None
    if edge_attr is not None and conv.lin_edge is None:
        raise invalid("edge_attr", "given to a layer without", "a tensor", "None, or edge_dim=...")
    if torch.compiler.is_compiling():
        return "returns-attention" if edge_attr is None else "edge-features"
    return edge_wise_reason(edge_index, edge_attr, bool(return_attention_weights), device)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return _layer_reason(conv, conv.att)


def _layer_reason(conv: Any, att: Tensor) -> str | None:
    reason = settings_reason(conv)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling() and conv.dropout > 0.0 and conv.training:
        return "attention-dropout"
    if att.shape != (1, conv.heads, conv.out_channels):
        return "parametrized"
    return changed_reason(conv, _METHODS)


def edgewise_bytes(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    return_attention_weights: Any = None,
) -> int:
    """Bytes of [E, H, C] tensors that the stock forward holds at its peak.

    Four of them: the score's sum and its leaky-relu, the gathered sources, and the messages.
    """
    att = own(conv, "att")
    return 4 * num_edges(edge_index) * att.numel() * att.element_size()


def _fills_values(conv: Any, edge_index: Any) -> bool:
    """Whether the stock layer computes values of self-loops, which an adjacency always has."""
    return bool(conv.add_self_loops) and not is_edge_list(edge_index)


def fast(
    conv: Any,
    x: Tensor | tuple[Tensor, Tensor],
    edge_index: Any,
    edge_attr: Tensor | None = None,
    return_attention_weights: bool | None = None,
) -> Any:
    """Fused ``GATv2Conv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.GATv2Conv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
    edge_index : Tensor [2, E], EdgeIndex, sparse COO or CSR Tensor, or SparseTensor
    edge_attr : Tensor [E, F_edge] or [E], optional
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
    if not torch.compiler.is_compiling():
        return _eager(conv, x, edge_index, edge_attr, bool(return_attention_weights))
    residual = _residual(conv, x)
    x_src, x_dst = _project(conv, x)
    x_src, x_dst, att, _ = _operands(conv, x_src, x_dst)
    variant = _variant(conv, edge_index, x_src.shape[0], x_dst.shape[0])
    slope = float(conv.negative_slope)
    out = compiled.gatv2_attention(x_src, x_dst, att, edge_index, variant, slope)
    return combine(out, residual=residual, heads=heads_of(conv), bias=conv.bias)


def _eager(conv: Any, x: Any, edge_index: Any, edge_attr: Tensor | None, returns: bool) -> Any:
    h_src, h_dst = (x, None) if isinstance(x, Tensor) else (x[0], x[1])
    num_src = h_src.shape[0]
    variant = _variant(conv, edge_index, num_src, num_src if h_dst is None else h_dst.shape[0])
    graph = graph_of(edge_index, variant)
    residual = _residual(conv, x)
    slope, att, heads = float(conv.negative_slope), own(conv, "att"), heads_of(conv)
    ends: dict[str, Any] = {"heads": heads, "residual": residual, "bias": own(conv, "bias")}
    dropout = dropout_of(conv)
    if edge_attr is None and not returns and sums_plainly(att, variant.num_dst, **ends):
        linears = conv.lin_l, None if h_dst is None and conv.share_weights else conv.lin_r
        found = projections(linears, (h_src, h_dst), att)
        if found is not None:
            src, dst = found
            return projected_gatv2(graph, h_src, src, att, h_dst=h_dst, dst=dst,
                                   negative_slope=slope, dropout_p=dropout, **ends)  # fmt: skip
    x_src, x_dst = _project(conv, x)
    edge = None
    if edge_attr is not None or returns:
        edge_index, edge_attr = rewritten(edge_index, edge_attr, variant, conv.fill_value)
        if edge_attr is not None:
            shape = (-1, conv.heads, conv.out_channels)
            edge = conv.lin_edge(as_columns(edge_attr)).view(shape)
    *operands, edge = _operands(conv, x_src, x_dst, edge)
    found = gatv2(graph, *operands, edge=edge, negative_slope=slope, dropout_p=dropout,
                  return_attention=returns, **ends)  # fmt: skip
    return (found[0], (edge_index, found[1])) if returns else found


def _variant(conv: Any, edge_index: Any, num_src: int, num_dst: int) -> Variant:
    return Variant(
        num_src,
        num_dst,
        bool(conv.add_self_loops),
        conv.flow == "target_to_source",
        conv.fill_value if _fills_values(conv, edge_index) else None,
    )


def _operands(conv: Any, x_src: Tensor, x_dst: Tensor, edge: Tensor | None = None) -> Any:
    """Attention's operands, in the dtype of the stock layer's messages; with ``edge`` last."""
    att = conv.att
    given = (x_src, x_dst, att) if edge is None else (x_src, x_dst, att, edge)
    dtype = message_dtype(att.device, *given)
    att = att.view(conv.heads, conv.out_channels).to(dtype)
    return x_src.to(dtype), x_dst.to(dtype), att, None if edge is None else edge.to(dtype)


def _residual(conv: Any, x: Any) -> Tensor | None:
    """Of the destinations; before the projections, as lazy layers initialise in that order."""
    residual = conv.res
    return None if residual is None else residual(x if isinstance(x, Tensor) else x[1])


def _project(conv: Any, x: Any) -> tuple[Tensor, Tensor]:
    """Projected sources and destinations [N, H, C]."""
    shape = (-1, conv.heads, conv.out_channels)
    if not isinstance(x, Tensor):
        return conv.lin_l(x[0]).view(shape), conv.lin_r(x[1]).view(shape)
    h_src = conv.lin_l(x).view(shape)
    return h_src, h_src if conv.share_weights else conv.lin_r(x).view(shape)

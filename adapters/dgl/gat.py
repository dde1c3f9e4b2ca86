"""DGL's ``GATConv`` and ``EdgeGATConv``: which calls run fused, and the fused forwards."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.attention import (
    as_column,
    dropout_of,
    feature_reason,
    graph_reason,
    modules_reason,
    plain_weight,
    projected_pair,
    same_dtype,
    structure_of,
)
from gnn_backend.errors import Unsupported, invalid
from gnn_backend.layers.edge_projection import edge_logits
from gnn_backend.layers.gat import gat
from gnn_backend.runtime.launch import engine_for


def eligible(
    conv: Any, graph: Any, feat: Any, edge_weight: Any = None, get_attention: bool = False
) -> str | None:
    """Reason code why this call of ``GATConv.forward`` has no fused path, or None."""
    if edge_weight is not None:
        return "edge-weight"
    reason = static_reason(conv) or feature_reason(feat, conv.attn_l, flat=True)
    return reason or graph_reason(graph, conv.attn_l.device)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    shape = (1, conv._num_heads, conv._out_feats)
    if conv.attn_l.shape != shape or conv.attn_r.shape != shape:
        return "parametrized"
    return modules_reason(conv)


def edgewise_bytes(
    conv: Any, graph: Any, feat: Any, edge_weight: Any = None, get_attention: bool = False
) -> int:
    """Bytes of edge-wise tensors [E, H] that the stock forward holds at its peak: three scores."""
    att = conv.attn_l
    return 3 * graph.num_edges() * int(conv._num_heads) * att.element_size()


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    edge_weight: None = None,
    get_attention: bool = False,
) -> Any:
    """Fused ``GATConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.GATConv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    feat : Tensor [num_src, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
    edge_weight : None
    get_attention : bool

    Returns
    -------
    Tensor [num_dst, H, D]
        With the weights, if asked for, a tuple of it and [E, H, 1].

    Raises
    ------
    InvalidArgument
        A destination without in-edges that the layer does not allow, or features that do not fit
        the graph; the stock layer has its own error for each.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    return _forward(conv, graph, feat, None, get_attention)


def edge_eligible(
    conv: Any, graph: Any, feat: Any, edge_feat: Any, get_attention: bool = False
) -> str | None:
    """Reason code why this call of ``EdgeGATConv.forward`` has no fused path, or None."""
    reason = edge_static_reason(conv) or feature_reason(feat, conv.attn_l, flat=True)
    reason = reason or feature_reason(edge_feat, conv.attn_l, flat=True)
    return reason or graph_reason(graph, conv.attn_l.device)


def edge_static_reason(conv: Any) -> str | None:
    """The part of :func:`edge_eligible` that the layer alone decides."""
    if conv.attn_edge.shape != (1, conv._num_heads, conv._out_feats):
        return "parametrized"
    return static_reason(conv)


def edge_edgewise_bytes(
    conv: Any, graph: Any, feat: Any, edge_feat: Any, get_attention: bool = False
) -> int:
    """Bytes of [E, H, D] tensors that the stock forward holds at its peak.

    Four of them: projected edge features, their product with the attention vector, their sum
    with the sources, and the messages.
    """
    att = conv.attn_l
    return 4 * graph.num_edges() * att.numel() * att.element_size()


def edge_fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    edge_feat: Tensor,
    get_attention: bool = False,
) -> Any:
    """Fused ``EdgeGATConv.forward`` for a call that :func:`edge_eligible` accepts.

    Parameters
    ----------
    edge_feat : Tensor [E, F_edge]

    The other parameters, the result and the errors are those of :func:`fast`.
    """
    if edge_feat.shape[0] != graph.num_edges():
        raise invalid("edge_feat", "wrong number of rows", edge_feat.shape[0], graph.num_edges())
    return _forward(conv, graph, feat, edge_feat, get_attention)


def _forward(
    conv: Any, graph: DGLGraph, feat: Any, edge_feat: Tensor | None, get_attention: bool
) -> Any:
    structure = structure_of(conv, graph)
    att_l, att_r = conv.attn_l, conv.attn_r
    engine_for(att_l.device, att_l.dtype)  # refuses before dropout draws
    if isinstance(feat, tuple):  # dropout draws its random numbers in the stock layer's order
        h_src, h_dst = conv.feat_drop(feat[0]), conv.feat_drop(feat[1])
    else:
        h_src, h_dst = conv.feat_drop(feat), None
    x_src, x_dst = projected_pair(conv, graph, h_src, h_dst)
    options: dict[str, Any] = {}
    if edge_feat is not None:
        options = _edge_options(conv, edge_feat)
    if not same_dtype(x_src, x_dst, att_l, att_r, *options.values()):
        raise Unsupported("dtype-mixed", f"{x_src.dtype}, {x_dst.dtype} and {att_l.dtype}")
    residual = None
    if conv.res_fc is not None:
        h_dst = h_src if h_dst is None else h_dst
        if graph.is_block and not isinstance(feat, tuple):
            h_dst = h_dst[: graph.number_of_dst_nodes()]
        residual = conv.res_fc(h_dst).view(h_dst.shape[0], -1, conv._out_feats)
    bias = None if conv.bias is None else conv.bias.view(1, conv._num_heads, conv._out_feats)
    found = gat(
        structure, x_src, x_dst, att_l, att_r, negative_slope=conv.leaky_relu.negative_slope,
        dropout_p=dropout_of(conv), residual=residual, bias=bias,
        return_attention=bool(get_attention), **options,
    )  # fmt: skip
    if get_attention:
        out, attention = as_column(found)
        return (conv.activation(out) if conv.activation else out), attention
    return conv.activation(found) if conv.activation else found


def _edge_options(conv: Any, edge_feat: Tensor) -> dict[str, Any]:
    """Edge features as :func:`gnn_backend.layers.gat.gat` takes them."""
    att = conv.attn_edge
    weight = plain_weight(conv.fc_edge, edge_feat, att.numel())
    if weight is not None:
        logit = edge_logits(edge_feat, weight, att)
        return {"edge_logit": logit, "edge_features": edge_feat, "edge_weight": weight}
    projected = conv.fc_edge(edge_feat).view(-1, conv._num_heads, conv._out_feats)
    return {"edge_logit": (projected * att).sum(-1), "edge_features": projected}

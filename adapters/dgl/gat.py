"""DGL's ``GATConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.attention import (
    as_column,
    dropout_of,
    feature_reason,
    graph_reason,
    linears_of,
    modules_reason,
    projected_pair,
    projections,
    same_dtype,
    structure_of,
)
from gnn_backend.errors import Unsupported
from gnn_backend.layers.gat import gat, projected_gat
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
    return attend(conv, graph, feat, {}, get_attention)


def attend(
    conv: Any, graph: DGLGraph, feat: Any, edges: dict[str, Any], get_attention: bool
) -> Any:
    """The forward of ``GATConv``, and of ``EdgeGATConv`` with what its edges bring.

    ``edges`` holds arguments of :func:`gnn_backend.layers.gat.gat`.
    """
    structure = structure_of(conv, graph)
    att_l, att_r = conv.attn_l, conv.attn_r
    engine_for(att_l.device, att_l.dtype)  # refuses before dropout draws
    if isinstance(feat, tuple):  # dropout draws its random numbers in the stock layer's order
        h_src, h_dst = conv.feat_drop(feat[0]), conv.feat_drop(feat[1])
    else:
        h_src, h_dst = conv.feat_drop(feat), None
    options = {
        "negative_slope": conv.leaky_relu.negative_slope,
        "dropout_p": dropout_of(conv),
        "residual": _residual(conv, graph, h_src, h_dst),
        "bias": None if conv.bias is None else conv.bias.view(conv._num_heads, conv._out_feats),
    }
    if att_l.is_cpu and same_dtype(att_l, att_r) and not edges and not get_attention:
        linears, shape = linears_of(conv, h_dst), (conv._num_heads, conv._out_feats)
        tables = h_src, h_dst
        pair = projections(linears, graph, structure, tables, att_l, shape, options["residual"])
        if pair is not None:
            src, dst = pair
            out = projected_gat(
                structure, h_src, src, att_l, att_r, h_dst=h_dst, dst=dst, **options
            )
            return conv.activation(out) if conv.activation else out
    x_src, x_dst = projected_pair(conv, graph, h_src, h_dst)
    if not same_dtype(x_src, x_dst, att_l, att_r, *edges.values()):
        raise Unsupported("dtype-mixed", f"{x_src.dtype}, {x_dst.dtype} and {att_l.dtype}")
    found = gat(
        structure, x_src, x_dst, att_l, att_r,
        return_attention=bool(get_attention), **options, **edges,
    )  # fmt: skip
    if get_attention:
        out, attention = as_column(found)
        return (conv.activation(out) if conv.activation else out), attention
    return conv.activation(found) if conv.activation else found


def _residual(conv: Any, graph: DGLGraph, h_src: Tensor, h_dst: Tensor | None) -> Tensor | None:
    if conv.res_fc is None:
        return None
    if h_dst is None:
        h_dst = h_src[: graph.number_of_dst_nodes()] if graph.is_block else h_src
    return conv.res_fc(h_dst).view(h_dst.shape[0], -1, conv._out_feats)  # type: ignore[no-any-return]

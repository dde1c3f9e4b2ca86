"""DGL's ``GATv2Conv``: which calls run fused, and the fused forward.

The seam is the class's ``forward``: class, parameters, ``state_dict`` and pickles stay stock. A
subclass that overrides ``forward`` is reached where it calls ``super().forward``.
"""

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
    projections,
    structure_of,
)
from gnn_backend.errors import Unsupported
from gnn_backend.layers.gatv2 import gatv2, projected_gatv2
from gnn_backend.runtime.launch import engine_for


def eligible(conv: Any, graph: Any, feat: Any, get_attention: bool = False) -> str | None:
    """Reason code why this call of ``GATv2Conv.forward`` has no fused path, or None."""
    reason = static_reason(conv) or feature_reason(feat, conv.attn)
    return reason or graph_reason(graph, conv.attn.device)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    if conv.attn.shape != (1, conv._num_heads, conv._out_feats):
        return "parametrized"
    return modules_reason(conv)


def edgewise_bytes(conv: Any, graph: Any, feat: Any, get_attention: bool = False) -> int:
    """Bytes of [E, H, D] tensors that the stock forward holds at its peak.

    Three of them: the score's sum, its leaky-relu, and the product with the attention vector.
    """
    att = conv.attn
    return 3 * graph.num_edges() * att.numel() * att.element_size()


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    get_attention: bool = False,
) -> Any:
    """Fused ``GATv2Conv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.GATv2Conv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    feat : Tensor [num_src, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
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
    structure = structure_of(conv, graph)
    att = conv.attn
    engine_for(att.device, att.dtype)  # refuses before dropout draws
    if isinstance(feat, tuple):  # dropout draws its random numbers in the stock layer's order
        h_src, h_dst = conv.feat_drop(feat[0]), conv.feat_drop(feat[1])
    else:
        h_src, h_dst = conv.feat_drop(feat), None
    residual = _residual(conv, graph, h_src if h_dst is None else h_dst)
    options: dict[str, Any] = {
        "negative_slope": conv.leaky_relu.negative_slope,
        "dropout_p": dropout_of(conv),
        "residual": residual,
    }
    found = None
    if not get_attention:
        shared = h_dst is None and conv.share_weights
        linears = conv.fc_src, None if shared else conv.fc_dst
        shape = conv._num_heads, conv._out_feats
        found = projections(linears, graph, structure, (h_src, h_dst), att, shape, residual)
    if found is not None:
        src, dst = found
        out = projected_gatv2(structure, h_src, src, att, h_dst=h_dst, dst=dst, **options)
        return conv.activation(out) if conv.activation else out
    x_src, x_dst = _project(conv, graph, h_src, h_dst)
    if not x_src.dtype == x_dst.dtype == att.dtype:
        raise Unsupported("dtype-mixed", f"{x_src.dtype}, {x_dst.dtype} and {att.dtype}")
    att = att.view(conv._num_heads, conv._out_feats)
    result = gatv2(structure, x_src, x_dst, att, return_attention=bool(get_attention), **options)
    out, *further = as_column(result) if get_attention else (result,)
    out = conv.activation(out) if conv.activation else out
    return (out, *further) if get_attention else out


def _residual(conv: Any, graph: DGLGraph, h_dst: Tensor) -> Tensor | None:
    if conv.res_fc is None:
        return None
    if graph.is_block:
        h_dst = h_dst[: graph.number_of_dst_nodes()]
    return conv.res_fc(h_dst).view(h_dst.shape[0], -1, conv._out_feats)  # type: ignore[no-any-return]


def _project(
    conv: Any, graph: DGLGraph, h_src: Tensor, h_dst: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Projected sources and destinations [N, H, D]."""
    shape = (-1, conv._num_heads, conv._out_feats)
    x_src = conv.fc_src(h_src).view(shape)
    if h_dst is not None:
        return x_src, conv.fc_dst(h_dst).view(shape)
    x_dst = x_src if conv.share_weights else conv.fc_dst(h_src).view(shape)
    return x_src, x_dst[: graph.number_of_dst_nodes()] if graph.is_block else x_dst

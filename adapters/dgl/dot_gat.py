"""DGL's ``DotGatConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.attention import (
    as_column,
    feature_reason,
    graph_reason,
    linears_of,
    overwrites,
    projected_pair,
    projections,
    structure_of,
)
from gnn_backend.layers.transformer import projected_dot, transformer
from gnn_backend.runtime.launch import engine_for


def eligible(conv: Any, graph: Any, feat: Any, get_attention: bool = False) -> str | None:
    """Reason code why this call of ``DotGatConv.forward`` has no fused path, or None."""
    weight = _weight(conv)
    reason = feature_reason(feat, weight, flat=True) or graph_reason(graph, weight.device)
    if reason is None and isinstance(feat, tuple) and overwrites(graph):
        return "input-form"
    return reason


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides: nothing."""
    return None


def _weight(conv: Any) -> Tensor:
    linear = conv.fc_src if hasattr(conv, "fc_src") else conv.fc
    return linear.weight  # type: ignore[no-any-return]


def edgewise_bytes(conv: Any, graph: Any, feat: Any, get_attention: bool = False) -> int:
    """Bytes of edge-wise tensors [E, H] that the stock forward holds at its peak: three scores."""
    return 3 * graph.num_edges() * int(conv._num_heads) * _weight(conv).element_size()


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    get_attention: bool = False,
) -> Any:
    """Fused ``DotGatConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.DotGatConv
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
    weight = _weight(conv)
    engine_for(weight.device, weight.dtype)
    h_src, h_dst = feat[:2] if isinstance(feat, tuple) else (feat, None)
    scale = conv._out_feats**-0.5
    if weight.is_cpu and not get_attention:
        linears, shape = linears_of(conv, h_dst), (conv._num_heads, conv._out_feats)
        found = projections(linears, graph, structure, (h_src, h_dst), weight, shape)
        if found is not None:
            src, dst = found
            return projected_dot(structure, h_src, src, shape[0], scale=scale, h_dst=h_dst, dst=dst)
    x_src, x_dst = projected_pair(conv, graph, h_src, h_dst)
    found = transformer(
        structure, x_dst, x_src, x_src, scale=scale, return_attention=bool(get_attention)
    )
    return as_column(found) if get_attention else found

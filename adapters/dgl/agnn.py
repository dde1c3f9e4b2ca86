"""DGL's ``AGNNConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.attention import (
    feature_reason,
    graph_reason,
    overwrites,
    same_dtype,
    structure_of,
)
from gnn_backend.layers.agnn import agnn


def eligible(conv: Any, graph: Any, feat: Any) -> str | None:
    """Reason code why this call of ``AGNNConv.forward`` has no fused path, or None."""
    reason = static_reason(conv) or feature_reason(feat, conv.beta, flat=True)
    reason = reason or graph_reason(graph, conv.beta.device)
    if reason is not None:
        return reason
    if isinstance(feat, tuple):
        if len(feat) != 2 or overwrites(graph):
            return "input-form"
    elif not graph.is_block and len(graph.ntypes) > 1:  # stock has no features for destinations
        return "input-form"
    parts = feat if isinstance(feat, tuple) else (feat,)
    return None if same_dtype(conv.beta, *parts) else "dtype-mixed"


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return None if conv.beta.shape == (1,) else "parametrized"


def edgewise_bytes(conv: Any, graph: Any, feat: Any) -> int:
    """Bytes of edge-wise numbers that the stock forward holds at its peak: three an edge."""
    return 3 * graph.num_edges() * conv.beta.element_size()


def fast(conv: Any, graph: DGLGraph, feat: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """Fused ``AGNNConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.AGNNConv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    feat : Tensor [num_src, F] or pair of Tensor [num_src, F], [num_dst, F]

    Returns
    -------
    Tensor [num_dst, F]

    Raises
    ------
    InvalidArgument
        A destination without in-edges that the layer does not allow, or features that do not fit
        the graph; the stock layer has its own error for each.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    structure = structure_of(conv, graph)
    x_src, x_dst = feat if isinstance(feat, tuple) else (feat, None)
    return agnn(structure, x_src, x_dst, conv.beta)

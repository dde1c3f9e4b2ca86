"""DGL's ``GINEConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from dgl.nn.pytorch import GINEConv
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import (
    call_reason,
    edge_features_as,
    ends_of,
    graph_only,
)
from gnn_backend.layers.own_and_neighbours import gine
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency


def eligible(conv: Any, graph: Any, node_feat: Any, edge_feat: Any) -> str | None:
    """Reason code why this call of ``GINEConv.forward`` has no fused path, or None."""
    ends = ends_of(graph, node_feat)
    if ends is None or not isinstance(edge_feat, Tensor) or edge_feat.dim() < 1:
        return "input-form"
    if ends[0].shape[1:] != ends[1].shape[1:] or len(edge_feat) != graph.num_edges():
        return "input-form"
    if edge_features_as(edge_feat, ends[0]) is None:
        return "input-form"
    return static_reason(conv) or call_reason(graph, (*ends, edge_feat))


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    changed = type(conv).message is not GINEConv.message or "message" in vars(conv)
    return "overridden-message" if changed else None


def edgewise_bytes(conv: Any, graph: Any, node_feat: Any, edge_feat: Any) -> int:
    """Bytes of edge-wise tensors that the stock forward holds at its peak.

    Three of them: the sources' rows, their sum with the edges', and the message.
    """
    x = node_feat[0] if isinstance(node_feat, tuple) else node_feat
    width = x.numel() // max(1, len(x))
    return 3 * graph.num_edges() * width * x.element_size()


def fast(
    conv: Any, graph: DGLGraph, node_feat: Tensor | tuple[Tensor, Tensor], edge_feat: Tensor
) -> Tensor:
    """Fused ``GINEConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.GINEConv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    node_feat : Tensor [num_src, *] or pair of Tensor
    edge_feat : Tensor [E, *]
        Of the nodes' trailing shape, or with one number for each edge.

    Returns
    -------
    Tensor [num_dst, *], or what the layer's network makes of it

    Raises
    ------
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    ends = ends_of(graph, node_feat)
    assert ends is not None
    edge = edge_features_as(edge_feat, ends[0])
    assert edge is not None
    out = gine(ScaledAdjacency(graph_only(graph)), *ends, edge, conv.eps)
    return out if conv.apply_func is None else conv.apply_func(out)  # type: ignore[no-any-return]

"""DGL's ``SAGEConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import (
    call_reason,
    ends_of,
    flat_weight,
    graph_only,
    is_scalar_weight,
)
from gnn_backend.adapters.dgl.attention import overwrites
from gnn_backend.layers.linear_aggregation import maps_first
from gnn_backend.layers.own_and_neighbours import mean_with_self
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

KINDS = ("mean", "gcn", "pool")


def eligible(conv: Any, graph: Any, feat: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``SAGEConv.forward`` has no fused path, or None."""
    reason = static_reason(conv)
    gcn = conv._aggre_type == "gcn"
    ends = ends_of(graph, feat, dims=2 if gcn else 0)
    if reason is not None or ends is None:
        return reason or "input-form"
    if edge_weight is not None and not is_scalar_weight(graph, edge_weight):
        return "input-form"
    pair = isinstance(feat, tuple)
    if gcn and pair and (overwrites(graph) or ends[0].shape[1:] != ends[1].shape[1:]):
        return "input-form"
    features = ends if edge_weight is None else (*ends, edge_weight)
    plain_sum = edge_weight is None and conv._aggre_type != "pool"
    return call_reason(graph, features, (conv.fc_neigh.weight,), plain_sum=plain_sum)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return None if conv._aggre_type in KINDS else "aggregation"


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Fused ``SAGEConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.SAGEConv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    feat : Tensor [num_src, *, F] or pair of Tensor
    edge_weight : Tensor [E] or [E, 1], optional

    Returns
    -------
    Tensor [num_dst, *, D]

    Raises
    ------
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    adjacency = ScaledAdjacency(graph_only(graph), flat_weight(edge_weight))
    if isinstance(feat, tuple):  # dropout draws its random numbers in the stock layer's order
        x_src, x_dst = conv.feat_drop(feat[0]), conv.feat_drop(feat[1])
    else:
        x_src = x_dst = conv.feat_drop(feat)
        if graph.is_block:
            x_dst = x_src[: graph.number_of_dst_nodes()]
    out = _neighbours(conv, adjacency, x_src, x_dst, isinstance(feat, tuple))
    if conv._aggre_type != "gcn":
        out = conv.fc_self(x_dst) + out
    elif conv.bias is not None:
        out = out + conv.bias
    out = conv.activation(out) if conv.activation is not None else out
    return conv.norm(out) if conv.norm is not None else out


def _neighbours(
    conv: Any, adjacency: ScaledAdjacency, x_src: Tensor, x_dst: Tensor, pair: bool
) -> Tensor:
    """What the neighbours (and for ``gcn`` the node itself) give, mapped by ``fc_neigh``."""
    project = conv.fc_neigh
    if conv._aggre_type == "pool":
        pooled = adjacency.neighbours(torch.relu(conv.fc_pool(x_src)), "max")
        return project(pooled)  # type: ignore[no-any-return]
    first = maps_first(adjacency, x_src, conv._in_src_feats, conv._out_feats)
    y_src = project(x_src) if first else x_src
    if conv._aggre_type == "mean":
        out = adjacency.neighbours(y_src, "mean")
    elif pair:
        out = mean_with_self(adjacency, y_src, project(x_dst) if first else x_dst)
    else:
        out = mean_with_self(adjacency, y_src, y_src[: len(x_dst)])
    return out if first else project(out)

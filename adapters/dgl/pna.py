"""DGL's ``PNAConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph
from dgl.nn.pytorch.conv.pnaconv import PNAConvTower
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import call_reason, graph_only, one_table
from gnn_backend.adapters.dgl.attention import LINEAR
from gnn_backend.errors import Unsupported
from gnn_backend.layers.projection import projection_of, watched
from gnn_backend.layers.towers import AGGREGATORS, SCALERS, Tower, towers


def eligible(conv: Any, graph: Any, node_feat: Any, edge_feat: Any = None) -> str | None:
    """Reason code why this call of ``PNAConv.forward`` has no fused path, or None."""
    x = one_table(graph, node_feat, dims=2)
    reason = static_reason(conv)
    if reason is not None or x is None or x.shape[1] != conv.in_size:
        return reason or "input-form"
    if not conv.edge_feat_size:
        return call_reason(graph, (x,), (conv.towers[0].M.weight,))
    shape = (graph.num_edges(), conv.edge_feat_size)
    if not isinstance(edge_feat, Tensor) or edge_feat.shape != shape:
        return "input-form"
    return call_reason(graph, (x, edge_feat), (conv.towers[0].M.weight,))


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    first = conv.towers[0]
    for tower in conv.towers:
        if type(tower) is not PNAConvTower or _settings(tower) != _settings(first):
            return "parametrized"
        if any(watched(module) for module in (tower, tower.M, tower.U)):
            return "hooks"
        if not isinstance(tower.delta, (int, float)) or not tower.delta:
            return "parametrized"
    known = set(first.aggregators) <= set(AGGREGATORS) and set(first.scalers) <= set(SCALERS)
    return None if known and first.aggregators and first.scalers else "aggregation"


def _settings(tower: Any) -> tuple[Any, ...]:
    named = (list(tower.aggregators), list(tower.scalers))
    return (*named, tower.delta, tower.in_size, tower.edge_feat_size)


def edgewise_bytes(conv: Any, graph: Any, node_feat: Any, edge_feat: Any = None) -> int:
    """Bytes of edge-wise tensors that the stock forward keeps for backward.

    Of each tower the linear map's input, and the messages twice: as they were made and by degree.
    """
    tower = conv.towers[0]
    numbers = 4 * tower.in_size + tower.edge_feat_size
    return int(len(conv.towers) * graph.num_edges() * numbers * node_feat.element_size())


def fast(conv: Any, graph: DGLGraph, node_feat: Tensor, edge_feat: Tensor | None = None) -> Tensor:
    """Fused ``PNAConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.PNAConv
    graph : DGLGraph
        Homogeneous, maybe a batch.
    node_feat : Tensor [N, F]
    edge_feat : Tensor [E, K], optional
        Needed by a layer that was made with edge features.

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    Unsupported
        No kernel takes these operands, a linear map of the layer has to be called, or the graph's
        formats are restricted.
    """
    first = conv.towers[0]
    maps = [_maps(tower, node_feat) for tower in conv.towers]
    edge = edge_feat if conv.edge_feat_size else None
    found = towers(
        graph_only(graph), node_feat, maps, first.aggregators, first.scalers, first.delta, edge
    )
    sizes = graph.batch_num_nodes()
    norm = sizes.to(node_feat.dtype).reciprocal().sqrt().repeat_interleave(sizes).unsqueeze(1)
    parts = [
        tower.dropout(tower.batchnorm(out * norm))
        for tower, out in zip(conv.towers, found, strict=True)
    ]
    out = conv.mixing_layer(torch.cat(parts, dim=1))
    return out + node_feat if conv.residual else out


def _maps(tower: Any, x: Tensor) -> Tower:
    """The tower's linear maps, which are nothing but that.

    Raises
    ------
    Unsupported
    """
    message = projection_of(tower.M, LINEAR, x.dtype, tower.in_size)
    update = projection_of(tower.U, LINEAR, x.dtype, tower.U.weight.shape[0])
    if message is None or update is None:
        raise Unsupported("parametrized", "a linear map of a tower is of another kind")
    return Tower(message, update)

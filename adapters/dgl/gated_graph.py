"""DGL's ``GatedGraphConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import call_reason, graph_only, one_table
from gnn_backend.adapters.dgl.attention import LINEAR
from gnn_backend.graph import Graph
from gnn_backend.layers.projection import projection_of
from gnn_backend.layers.typed_sources import by_edge_type
from gnn_backend.ops.aggregation import aggregate

ROWS_PER_EDGE = 4  # mapped node rows that cost less than handling one edge as stock does


def eligible(conv: Any, graph: Any, feat: Any, etypes: Any = None) -> str | None:
    """Reason code why this call of ``GatedGraphConv.forward`` has no fused path, or None."""
    x = one_table(graph, feat, dims=2)
    if x is None or x.shape[1] > conv._out_feats:
        return "input-form"
    reason = static_reason(conv) or call_reason(
        graph, (x,), (conv.linears[0].weight,), plain_sum=etypes is None
    )
    if reason is not None or (conv._n_etypes == 1 and etypes is None):
        return reason
    if conv._n_etypes == 1 or not isinstance(etypes, Tensor):
        return "input-form"
    if etypes.shape != (graph.num_edges(),) or etypes.device != x.device:
        return "input-form"
    if etypes.is_floating_point() or etypes.dtype == torch.bool:
        return "input-form"
    rows = len(x) * conv._n_etypes
    if rows > ROWS_PER_EDGE * graph.num_edges() or rows >= 2**31:
        return "edge-types"
    return None if _plain(conv, x.dtype) else "parametrized"


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return None if conv._n_steps >= 1 else "no-operators"


def edgewise_bytes(conv: Any, graph: Any, feat: Any, etypes: Any = None) -> int:
    """Bytes of edge-wise tensors that the stock forward keeps for backward.

    With types, of each step the sources' rows at the edges and what they are mapped to.
    """
    if etypes is None:
        return 0
    numbers = 2 * graph.num_edges() * conv._out_feats * conv._n_steps
    return int(numbers * feat.element_size())


def fast(conv: Any, graph: DGLGraph, feat: Tensor, etypes: Tensor | None = None) -> Tensor:
    """Fused ``GatedGraphConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.GatedGraphConv
    graph : DGLGraph
        Homogeneous.
    feat : Tensor [N, F]
    etypes : integer Tensor [E], optional
        Types of edges, where the layer has several.

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    InvalidArgument
        A type is out of range; stock has its own error.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    structure = graph_only(graph)
    padding = feat.new_zeros(len(feat), conv._out_feats - feat.shape[1])
    h = torch.cat([feat, padding], -1)
    sources, project = structure, conv.linears[0]
    if etypes is not None:
        sources, project = _typed(conv, structure, etypes)
    for _ in range(conv._n_steps):
        h = conv.gru(aggregate(sources, project(h), "sum"), h)
    return h


def _typed(conv: Any, structure: Graph, etypes: Tensor) -> tuple[Graph, Callable[[Tensor], Tensor]]:
    """The graph over nodes mapped for each type, and the map to them."""
    typed = by_edge_type(structure, etypes, conv._n_etypes)
    chosen = [conv.linears[k] for k in typed.types]
    weight = torch.cat([linear.weight for linear in chosen])
    bias = torch.cat([linear.bias for linear in chosen])

    def project(h: Tensor) -> Tensor:
        return torch.nn.functional.linear(h, weight, bias).view(-1, conv._out_feats)

    return typed.graph, project


def _plain(conv: Any, dtype: torch.dtype) -> bool:
    """Whether the linear maps are nothing but weights and biases."""
    found = [projection_of(linear, LINEAR, dtype, conv._out_feats) for linear in conv.linears]
    return all(p is not None and p.bias is not None for p in found)

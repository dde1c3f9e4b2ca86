"""DGL's ``GINConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor, nn

from gnn_backend.adapters.dgl.aggregating import (
    call_reason,
    ends_of,
    flat_weight,
    graph_only,
    is_scalar_weight,
)
from gnn_backend.adapters.dgl.attention import LINEAR
from gnn_backend.layers.linear_aggregation import maps_first
from gnn_backend.layers.own_and_neighbours import gin
from gnn_backend.layers.projection import projection_of, watched
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency
from gnn_backend.ops.projected_attention import Projection

KINDS = ("sum", "mean", "max")


def eligible(conv: Any, graph: Any, feat: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``GINConv.forward`` has no fused path, or None."""
    ends = ends_of(graph, feat)
    if ends is None or ends[0].shape[1:] != ends[1].shape[1:]:
        return "input-form"
    if edge_weight is not None and not is_scalar_weight(graph, edge_weight):
        return "input-form"
    features = ends if edge_weight is None else (*ends, edge_weight)
    plain_sum = edge_weight is None and conv._aggregator_type != "max"
    return static_reason(conv) or call_reason(graph, features, plain_sum=plain_sum)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return None if conv._aggregator_type in KINDS else "aggregation"


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    edge_weight: Tensor | None = None,
) -> Tensor:
    """Fused ``GINConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.GINConv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    feat : Tensor [num_src, *, F] or pair of Tensor
    edge_weight : Tensor [E] or [E, 1], optional

    Returns
    -------
    Tensor [num_dst, *, F], or what the layer's network makes of it

    Raises
    ------
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    ends = ends_of(graph, feat)
    assert ends is not None
    reduce = conv._aggregator_type
    first, rest = None, None if conv.apply_func is None else [conv.apply_func]
    adjacency = ScaledAdjacency(graph_only(graph), flat_weight(edge_weight))
    if reduce != "max" and conv.eps.dtype == ends[0].dtype:
        first, rest = _first_map(conv.apply_func, adjacency, ends[0], rest)
    out = gin(adjacency, *ends, conv.eps, reduce, first)
    for module in rest or ():
        out = module(out)
    return conv.activation(out) if conv.activation is not None else out


def _first_map(
    network: Any, adjacency: ScaledAdjacency, x: Tensor, rest: list[Any] | None
) -> tuple[Projection | None, list[Any] | None]:
    """A narrowing linear map that a network begins with, and what is left of the network."""
    modules = [network]
    if type(network) is nn.Sequential and len(network) and not watched(network):
        modules = list(network)
    width = getattr(modules[0], "out_features", None)
    if not isinstance(modules[0], nn.Module) or not isinstance(width, int):
        return None, rest
    found = projection_of(modules[0], LINEAR, x.dtype, width)
    if found is None or found.weight.shape[1] != x.shape[-1]:
        return None, rest
    first = maps_first(adjacency, x, x.shape[-1], width)
    return (found, modules[1:]) if first else (None, rest)

"""DGL's graph filters ``TAGConv``, ``SGConv`` and ``APPNPConv``: which calls run fused, and how."""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph
from torch import Tensor, nn

from gnn_backend.adapters.dgl.aggregating import (
    call_reason,
    check_positive,
    graph_only,
    one_table,
)
from gnn_backend.adapters.dgl.attention import LINEAR, structure_of
from gnn_backend.graph import Graph
from gnn_backend.layers.normalization import symmetric, symmetric_by_weight
from gnn_backend.layers.polynomial import (
    personalized_pagerank,
    power_mapped,
    power_times,
    powers,
    powers_mapped,
)
from gnn_backend.layers.projection import projection_of, watched
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

#: How much narrower a result lets sums on the CPU be so much cheaper that fusing them pays there.
NARROWER = 4


def _reason(
    graph: Any,
    feat: Any,
    edge_weight: Any,
    parameters: tuple[Any, ...] = (),
    *,
    dims: int = 0,
    narrowed_to: int | None = None,
) -> str | None:
    """Reason code why a call has no fused path.

    ``narrowed_to`` is the width that a linear map leaves to sum, 0 if it has to come last; None
    where stock multiplies with weights in any case.
    """
    x = one_table(graph, feat, dims=dims)
    if x is None:
        return "input-form"
    if edge_weight is None:
        plain = narrowed_to is not None and not 0 < NARROWER * narrowed_to <= x.shape[-1]
        return call_reason(graph, (x,), parameters, plain_sum=plain)
    if not isinstance(edge_weight, Tensor) or edge_weight.shape != (graph.num_edges(),):
        return "input-form"
    return call_reason(graph, (x, edge_weight), parameters)


def _adjacency(structure: Graph, x: Tensor, edge_weight: Tensor | None) -> ScaledAdjacency:
    """The adjacency that TAGConv and SGConv take powers of: in-degrees count at both ends."""
    if edge_weight is None:
        return symmetric(structure, x.dtype, source="dst")
    check_positive(edge_weight)
    return symmetric_by_weight(structure, edge_weight)


# ---------------------------------------------------------------------- TAGConv


def tag_eligible(conv: Any, graph: Any, feat: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``TAGConv.forward`` has no fused path, or None."""
    reason = tag_static_reason(conv)
    width = conv._out_feats
    return reason or _reason(graph, feat, edge_weight, (conv.lin.weight,), narrowed_to=width)


def tag_static_reason(conv: Any) -> str | None:
    """The part of :func:`tag_eligible` that the layer alone decides."""
    return None if conv._k >= 1 else "no-operators"


def tag_fast(conv: Any, graph: DGLGraph, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
    """Fused ``TAGConv.forward`` for a call that :func:`tag_eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.TAGConv
    graph : DGLGraph
        Homogeneous.
    feat : Tensor [N, *, F]
    edge_weight : Tensor [E], optional
        Positive.

    Returns
    -------
    Tensor [N, *, D]

    Raises
    ------
    InvalidArgument
        A weight is not positive; stock has its own error.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    adjacency = _adjacency(graph_only(graph), feat, edge_weight)
    found = projection_of(conv.lin, LINEAR, feat.dtype, conv._out_feats)
    out = None
    if found is not None and found.weight.shape[1] == (conv._k + 1) * feat.shape[-1]:
        out = powers_mapped(adjacency, feat, conv._k, *found)
    if out is None:
        out = conv.lin(powers(adjacency, feat, conv._k))
    return conv._activation(out) if conv._activation is not None else out


# ---------------------------------------------------------------------- SGConv


def sg_eligible(conv: Any, graph: Any, feat: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``SGConv.forward`` has no fused path, or None."""
    reason = sg_static_reason(conv)
    plain = conv.norm is None and not conv._cached
    width = conv.fc.weight.shape[0] if plain else 0
    return reason or _reason(graph, feat, edge_weight, (conv.fc.weight,), narrowed_to=width, dims=2)


def sg_static_reason(conv: Any) -> str | None:
    """The part of :func:`sg_eligible` that the layer alone decides."""
    return "no-operators" if conv._k < 1 or conv._cached_h is not None else None


def sg_fast(conv: Any, graph: DGLGraph, feat: Tensor, edge_weight: Tensor | None = None) -> Tensor:
    """Fused ``SGConv.forward`` for a call that :func:`sg_eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.SGConv
        If it is ``cached``, it keeps what the aggregation gives, as stock does.
    graph : DGLGraph
        Homogeneous.
    feat : Tensor [N, F]
    edge_weight : Tensor [E], optional
        Positive.

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    InvalidArgument
        A destination without in-edges that the layer does not allow, or a weight that is not
        positive; stock has its own error for each.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    adjacency = _adjacency(structure_of(conv, graph), feat, edge_weight)
    if conv.norm is None and not conv._cached:
        width = conv.fc.weight.shape[0]
        found = projection_of(conv.fc, LINEAR, feat.dtype, width)
        if found is not None:
            return power_mapped(adjacency, feat, conv._k, found)
    h = power_times(adjacency, feat, conv._k)
    if conv.norm is not None:
        h = conv.norm(h)
    if conv._cached:
        conv._cached_h = h
    return conv.fc(h)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- APPNPConv


def appnp_eligible(conv: Any, graph: Any, feat: Any, edge_weight: Any = None) -> str | None:
    """Reason code why this call of ``APPNPConv.forward`` has no fused path, or None."""
    reason = appnp_static_reason(conv) or _reason(graph, feat, edge_weight)
    if reason is None and edge_weight is None and feat.dtype != torch.get_default_dtype():
        return "dtype-mixed"  # stock multiplies with ones of that type
    return reason


def appnp_static_reason(conv: Any) -> str | None:
    """The part of :func:`appnp_eligible` that the layer alone decides."""
    if conv._k < 1:
        return "no-operators"
    if type(conv.edge_drop) is not nn.Dropout:
        return "parametrized"
    return "hooks" if watched(conv.edge_drop) else None


def appnp_fast(
    conv: Any, graph: DGLGraph, feat: Tensor, edge_weight: Tensor | None = None
) -> Tensor:
    """Fused ``APPNPConv.forward`` for a call that :func:`appnp_eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.APPNPConv
    graph : DGLGraph
        Homogeneous.
    feat : Tensor [N, *]
    edge_weight : Tensor [E], optional
        Positive.

    Returns
    -------
    Tensor [N, *]

    Raises
    ------
    InvalidArgument
        A weight is not positive; stock has its own error.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    structure = graph_only(graph)
    if edge_weight is None:
        adjacency = symmetric(structure, feat.dtype)
    else:
        check_positive(edge_weight)
        adjacency = symmetric_by_weight(structure, edge_weight)
    if not (conv.edge_drop.training and conv.edge_drop.p > 0):
        return personalized_pagerank(adjacency, feat, conv._k, conv._alpha)

    def weights() -> Tensor:
        # Ones are drawn for on the CPU and in this shape, as stock does.
        ones = torch.ones(structure.num_edges, 1)
        dropped = conv.edge_drop(ones if edge_weight is None else edge_weight)
        return dropped.to(feat.device).reshape(-1)  # type: ignore[no-any-return]

    return personalized_pagerank(adjacency, feat, conv._k, conv._alpha, weights)

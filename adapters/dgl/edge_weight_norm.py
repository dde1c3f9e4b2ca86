"""DGL's ``EdgeWeightNorm``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import call_reason, check_positive, graph_only
from gnn_backend.layers.normalization import by_edge, weight_factors
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency


def eligible(norm: Any, graph: Any, edge_weight: Any) -> str | None:
    """Reason code why this call of ``EdgeWeightNorm.forward`` has no fused path, or None."""
    if not isinstance(graph, DGLGraph) or not isinstance(edge_weight, Tensor):
        return "input-form"
    if edge_weight.shape != (graph.num_edges(),):
        return "input-form"
    return static_reason(norm) or call_reason(graph, (edge_weight,))


def static_reason(norm: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return None if norm._norm in ("both", "right") else "no-operators"


def fast(norm: Any, graph: DGLGraph, edge_weight: Tensor) -> Tensor:
    """Fused ``EdgeWeightNorm.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    norm : dgl.nn.pytorch.EdgeWeightNorm
    graph : DGLGraph
    edge_weight : Tensor [E]

    Returns
    -------
    Tensor [E]

    Raises
    ------
    InvalidArgument
        A weight that is not positive where the norm is ``both``; stock has its own error.
    """
    both = norm._norm == "both"
    if both:
        check_positive(edge_weight)
    structure = graph_only(graph)
    power = -0.5 if both else -1.0
    dst = weight_factors(structure, edge_weight, "dst", power, norm._eps)
    src = weight_factors(structure, edge_weight, "src", power, norm._eps) if both else None
    normalised = by_edge(ScaledAdjacency(structure, edge_weight, src, dst)).weight
    assert normalised is not None
    return normalised

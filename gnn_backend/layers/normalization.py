"""Factors of the nodes that normalise an adjacency: degrees, plain or weighted, to some power."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.ops.edge_dot import edge_dot


def degree_factors(
    graph: Graph, end: Direction, power: float, dtype: torch.dtype, *, isolated: float = 1.0
) -> Tensor:
    """In-degrees (``"dst"``) or out-degrees (``"src"``) to a power; kept with the graph.

    Parameters
    ----------
    graph : Graph
    end : {"dst", "src"}
    power : float
        Of the degree.
    dtype : torch.dtype
        Of the result; computed in float32 at least.
    isolated : float
        What stands at nodes of degree 0: 1 in DGL, 0 in PyG.

    Returns
    -------
    Tensor [num_dst] or [num_src]
    """
    key = ("degree factors", end, power, dtype, isolated)
    found = graph.plans.get(key)
    if found is None:
        # Tensors born in inference mode could not take part in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            degree = degrees(graph, end)
            wide = torch.promote_types(dtype, torch.float32)
            factors = degree.clamp(min=1).to(wide).pow(power)
            found = factors.masked_fill(degree == 0, isolated).to(dtype)
        graph.plans[key] = found
    return found  # type: ignore[no-any-return]


def degrees(graph: Graph, end: Direction) -> Tensor:
    """In-degrees (``"dst"``) or out-degrees (``"src"``), integer; kept with the graph."""
    found = graph.plans.get(("degrees of", end))
    if found is None:
        with torch.inference_mode(False):
            if end == "dst":
                found = graph.by_dst.indptr.diff()
            else:  # counted: inference does not need the transposed adjacency
                indices = graph.by_dst.indices
                found = torch.zeros(graph.num_src, dtype=torch.int64, device=graph.device)
                found.index_add_(0, indices, found.new_ones(1).expand(indices.numel()))
        graph.plans["degrees of", end] = found
    return found  # type: ignore[no-any-return]


def weighted_degrees(graph: Graph, weight: Tensor, end: Direction) -> Tensor:
    """Sums of the edges' weights [E] at each node, with gradients.

    Parameters
    ----------
    graph : Graph
    weight : Tensor [E]
        In the edge order of ``graph``.
    end : {"dst", "src"}
        Where edges are summed.

    Returns
    -------
    Tensor [num_dst] or [num_src]
    """
    towards = graph if end == "dst" else graph.reversed()
    ones = weight.new_ones(towards.num_src, 1)
    total: Tensor = aggregate(towards, ones, "sum", edge=weight, message="mul")
    return total.squeeze(-1)


def weight_factors(
    graph: Graph, weight: Tensor, end: Direction, power: float, eps: float = 0.0
) -> Tensor:
    """Weighted degrees of each node, plus ``eps``, to a power; with gradients.

    Parameters
    ----------
    graph : Graph
    weight : Tensor [E]
        In the edge order of ``graph``.
    end : {"dst", "src"}
        Where edges are summed.
    power, eps : float

    Returns
    -------
    Tensor [num_dst] or [num_src]
        1 at nodes without edges, so that 0 to a negative power spoils no gradient.
    """
    total = weighted_degrees(graph, weight, end) + eps
    return total.masked_fill(degrees(graph, end) == 0, 1.0).pow(power)


def by_edge(adjacency: ScaledAdjacency) -> ScaledAdjacency:
    """The same matrix with the factors of both ends multiplied into a weight for each edge.

    For those who want weights edge by edge, and for messages that are not summed.
    """
    graph, weight, src, dst = adjacency
    if src is None and dst is None:
        return adjacency
    like = dst if src is None else src
    assert like is not None
    src = like.new_ones(graph.num_src) if src is None else src
    dst = like.new_ones(graph.num_dst) if dst is None else dst
    ends = edge_dot(graph, src.view(-1, 1, 1), dst.view(-1, 1, 1)).squeeze(-1)
    return ScaledAdjacency(graph, ends if weight is None else weight * ends)


def symmetric(
    graph: Graph, dtype: torch.dtype, *, source: Direction = "src", isolated: float = 1.0
) -> ScaledAdjacency:
    r"""The adjacency :math:`D^{-1/2} A D^{-1/2}`.

    Parameters
    ----------
    graph : Graph
    dtype : torch.dtype
    source : {"src", "dst"}
        Whether sources count their out-edges or, where they are the destinations too, in-edges.
    isolated : float
        As for :func:`degree_factors`.
    """
    return ScaledAdjacency(
        graph,
        src=degree_factors(graph, source, -0.5, dtype, isolated=isolated),
        dst=degree_factors(graph, "dst", -0.5, dtype, isolated=isolated),
    )


def symmetric_by_weight(graph: Graph, weight: Tensor) -> ScaledAdjacency:
    """The weighted adjacency, in which weighted degrees normalise both ends.

    Parameters
    ----------
    graph : Graph
    weight : Tensor [E]
        Positive, in the edge order of ``graph``; gets a gradient through the degrees, too.
    """
    return ScaledAdjacency(
        graph,
        weight,
        weight_factors(graph, weight, "src", -0.5),
        weight_factors(graph, weight, "dst", -0.5),
    )


def symmetric_by_weighted_in_degree(graph: Graph, weight: Tensor) -> ScaledAdjacency:
    """The weighted adjacency, normalised at both ends by the weights that arrive at a node.

    Parameters
    ----------
    graph : Graph
        As many sources as destinations.
    weight : Tensor [E]
        In the edge order of ``graph``; gets a gradient through the degrees, too. Of a node whose
        weights add up to 0 the factor is 0, of a negative sum it is NaN.
    """
    factors = weighted_degrees(graph, weight, "dst").pow(-0.5)
    factors = factors.masked_fill(factors.isinf(), 0.0)
    return ScaledAdjacency(graph, weight, factors, factors)

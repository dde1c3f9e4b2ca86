"""Adjacencies with a factor for each node, and optionally a weight for each edge.

The factors of normalised adjacencies, as degrees to some power, multiply node tables before and
behind the aggregation, so that no edge-wise tensor is made of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.ops.edge_dot import edge_dot


class ScaledAdjacency(NamedTuple):
    r"""The matrix :math:`D_{dst} A D_{src}`, in which :math:`A` holds the edges' weights.

    Attributes
    ----------
    graph : Graph
    weight : Tensor [E] or None
        In the caller's edge order; None: all are 1.
    src, dst : Tensor [num_src], [num_dst] or None
        Factors of the nodes at both ends; None: all are 1.
    """

    graph: Graph
    weight: Tensor | None = None
    src: Tensor | None = None
    dst: Tensor | None = None

    def neighbours(self, x: Tensor, reduce: str = "sum") -> Tensor:
        """Weighted sum (or another reduction) of the neighbours, without the factors.

        Parameters
        ----------
        x : Tensor [num_src, *]
        reduce : str
            As for :func:`gnn_backend.ops.aggregate`, whose rules of DGL hold: the first of equal
            extremes gets the gradient, and a NaN is none.

        Returns
        -------
        Tensor [num_dst, *]
        """
        message = "copy" if self.weight is None else "mul"
        out: Tensor = aggregate(
            self.graph, x, reduce, edge=self.weight, message=message, ties="first", nan="skip"
        )
        return out

    def times(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The product with a table of the sources.

        Parameters
        ----------
        x : Tensor [num_src, *]
        added : Tensor, optional
            What is added, of a shape that broadcasts.

        Returns
        -------
        Tensor [num_dst, *]
        """
        return scaled(self.neighbours(scaled(x, self.src)), self.dst, added)


def scaled(x: Tensor, factors: Tensor | None, added: Tensor | None = None) -> Tensor:
    """Rows times a number each, plus something, in one pass.

    Parameters
    ----------
    x : Tensor [N, *]
    factors : Tensor [N] or None
        In the dtype of ``x``.
    added : Tensor, optional
        Of a shape that broadcasts.
    """
    if factors is None:
        return x if added is None else x + added
    column = factors.view(-1, *(1,) * (x.dim() - 1))
    return x * column if added is None else torch.addcmul(added, x, column)


def degree_factors(graph: Graph, end: Direction, power: float, dtype: torch.dtype) -> Tensor:
    """In-degrees (``"dst"``) or out-degrees (``"src"``) to a power; kept with the graph.

    Parameters
    ----------
    graph : Graph
    end : {"dst", "src"}
    power : float
        Of the degree, where 0 counts as 1.
    dtype : torch.dtype
        Of the result; computed in float32 at least.

    Returns
    -------
    Tensor [num_dst] or [num_src]
    """
    key = ("degree factors", end, power, dtype)
    found = graph.plans.get(key)
    if found is None:
        # Tensors born in inference mode could not take part in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            wide = torch.promote_types(dtype, torch.float32)
            factors = degrees(graph, end).clamp(min=1).to(wide).pow(power)
        found = graph.plans[key] = factors.to(dtype)
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


def weight_factors(
    graph: Graph, weight: Tensor, end: Direction, power: float, eps: float = 0.0
) -> Tensor:
    """Sums of the edges' weights at each node, plus ``eps``, to a power; with gradients.

    Parameters
    ----------
    graph : Graph
    weight : Tensor [E]
        In the caller's edge order.
    end : {"dst", "src"}
        Where edges are summed.
    power, eps : float

    Returns
    -------
    Tensor [num_dst] or [num_src]
        1 at nodes without edges, so that 0 to a negative power spoils no gradient.
    """
    towards = graph if end == "dst" else graph.reversed()
    ones = weight.new_ones(towards.num_src, 1)
    total: Tensor = aggregate(towards, ones, "sum", edge=weight, message="mul")
    total = total.squeeze(-1) + eps
    return total.masked_fill(degrees(graph, end) == 0, 1.0).pow(power)


def edge_weights(graph: Graph, weight: Tensor, src: Tensor | None, dst: Tensor) -> Tensor:
    """Weights of edges times the factors of both ends, for those who want them edge by edge.

    Parameters
    ----------
    graph : Graph
    weight : Tensor [E]
        In the caller's edge order.
    src : Tensor [num_src] or None
    dst : Tensor [num_dst]

    Returns
    -------
    Tensor [E]
    """
    src = dst.new_ones(graph.num_src) if src is None else src
    return weight * edge_dot(graph, src.view(-1, 1, 1), dst.view(-1, 1, 1)).squeeze(-1)


def symmetric(graph: Graph, dtype: torch.dtype, *, source: Direction = "src") -> ScaledAdjacency:
    r"""The adjacency :math:`D^{-1/2} A D^{-1/2}`.

    Parameters
    ----------
    graph : Graph
    dtype : torch.dtype
    source : {"src", "dst"}
        Whether sources count their out-edges or, where they are the destinations too, in-edges.
    """
    return ScaledAdjacency(
        graph,
        src=degree_factors(graph, source, -0.5, dtype),
        dst=degree_factors(graph, "dst", -0.5, dtype),
    )


def symmetric_by_weight(graph: Graph, weight: Tensor) -> ScaledAdjacency:
    """The weighted adjacency, in which weighted degrees normalise both ends.

    Parameters
    ----------
    graph : Graph
    weight : Tensor [E]
        Positive, in the caller's edge order; gets a gradient through the degrees, too.
    """
    return ScaledAdjacency(
        graph,
        weight,
        weight_factors(graph, weight, "src", -0.5),
        weight_factors(graph, weight, "dst", -0.5),
    )


def maps_first(x: Tensor, width_in: int, width_out: int) -> bool:
    """Whether a linear map costs less before an aggregation of ``x`` than behind it.

    What is mapped first is aggregated in backward as well; ``x`` itself only if it wants a
    gradient, as the features of a first layer do not.
    """
    if not torch.is_grad_enabled():
        return width_out < width_in
    return 2 * width_out < width_in * (1 + x.requires_grad)

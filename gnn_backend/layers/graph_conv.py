"""Graph convolution (Kipf and Welling, 2017) with normalisation at either end."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.layers.linear_aggregation import aggregate_linear
from gnn_backend.layers.normalization import degree_factors
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency
from gnn_backend.ops.projected_attention import Projection


def graph_conv(
    graph: Graph,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    norm: str = "both",
    edge_weight: Tensor | None = None,
) -> Tensor:
    r"""Normalised sum of the neighbours, mapped linearly in the cheaper order.

    .. math:: y_i = b + \sum_{e = (j \to i)} c_{ij} \, w_e \, x_j W

    Parameters
    ----------
    graph : Graph
    x : Tensor [num_src, *, F]
    weight : Tensor [F, D], optional
    bias : Tensor [D], optional
    norm : {"both", "left", "right", "none"}
        :math:`c` is one over the square root of the source's out-degree times the destination's
        in-degree, one over the former or the latter, or 1. Degrees of 0 count as 1.
    edge_weight : Tensor [E], optional
        In the caller's edge order.

    Returns
    -------
    Tensor [num_dst, *, D]

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit.
    """
    power = {"both": -0.5, "left": -1.0}.get(norm)
    source = None if power is None else degree_factors(graph, "src", power, x.dtype)
    target = degree_factors(graph, "dst", -0.5, x.dtype) if norm == "both" else None
    adjacency = ScaledAdjacency(graph, edge_weight, source, target)
    reduce = "mean" if norm == "right" else "sum"
    if weight is None:
        return adjacency.times(x, bias, reduce=reduce)
    return aggregate_linear(adjacency, x, Projection(weight.t(), bias), reduce=reduce)

"""A linear map and a linear aggregation, in the cheaper of the two orders."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear as apply_linear

from gnn_backend.layers.scaled_adjacency import ScaledAdjacency
from gnn_backend.ops.projected_attention import Projection


def aggregate_linear(
    adjacency: ScaledAdjacency, x: Tensor, linear: Projection, *, reduce: str = "sum"
) -> Tensor:
    """The product of an adjacency with features that are mapped linearly.

    Parameters
    ----------
    adjacency : ScaledAdjacency
    x : Tensor [num_src, *, F]
    linear : Projection
        Weight [D, F] and bias [D], added once a node.
    reduce : {"sum", "mean"}

    Returns
    -------
    Tensor [num_dst, *, D]
    """
    if maps_first(adjacency, x, *linear.weight.shape[::-1]):
        return adjacency.times(apply_linear(x, linear.weight), linear.bias, reduce=reduce)
    return apply_linear(adjacency.times(x, reduce=reduce), linear.weight, linear.bias)


def maps_first(adjacency: ScaledAdjacency, x: Tensor, width_in: int, width_out: int) -> bool:
    """Whether a linear map costs less before an aggregation of ``x`` than behind it.

    Numbers read and written decide, those of backward included: what is mapped first is aggregated
    in backward as well, ``x`` itself only if it wants a gradient, as the features of a first layer
    do not.
    """
    graph, weight = adjacency.graph, adjacency.weight
    trains = torch.is_grad_enabled()
    weights_learn = trains and weight is not None and weight.requires_grad
    passes_out = 1 + trains + weights_learn
    passes_in = 1 + (trains and x.requires_grad) + weights_learn
    dense = width_in + width_out
    before = graph.num_edges * width_out * passes_out + graph.num_src * dense
    behind = graph.num_edges * width_in * passes_in + graph.num_dst * dense
    return before <= behind

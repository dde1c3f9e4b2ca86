"""Local extrema convolution (Ranjan et al., 2020): differences of both ends, summed."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.layers.normalization import degrees, weighted_degrees
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency


def le(adjacency: ScaledAdjacency, a: Tensor, b: Tensor) -> Tensor:
    r"""Sum of differences, :math:`y_i = \sum_{e = (j \to i)} w_e (a_j - b_i)`.

    Parameters
    ----------
    adjacency : ScaledAdjacency
        Without factors.
    a : Tensor [num_src, D]
    b : Tensor [num_dst, D]

    Returns
    -------
    Tensor [num_dst, D]

    Notes
    -----
    ``b`` leaves the sum: it is multiplied once by the weighted in-degree of its node.
    """
    graph, weight = adjacency.graph, adjacency.weight
    if weight is None:
        degree = degrees(graph, "dst").to(a.dtype)
    else:
        degree = weighted_degrees(graph, weight, "dst")
    return adjacency.neighbours(a) - degree.unsqueeze(-1) * b

"""Local extrema convolution (Ranjan et al., 2020): differences of both ends, summed."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.layers.linear_aggregation import aggregate_weighted
from gnn_backend.layers.normalization import Weighted


def le(weighted: Weighted, a: Tensor, b: Tensor) -> Tensor:
    r"""Sum of differences, :math:`y_i = \sum_{e = (j \to i)} w_e (a_j - b_i)`.

    Parameters
    ----------
    weighted : Weighted
    a : Tensor [num_src, D]
    b : Tensor [num_dst, D]

    Returns
    -------
    Tensor [num_dst, D]

    Notes
    -----
    ``b`` leaves the sum: it is multiplied once by the weighted in-degree of its node.
    """
    graph, weight = weighted
    if weight is None:
        degree = graph.by_dst.indptr.diff().to(a.dtype).unsqueeze(-1)
    else:
        degree = aggregate_weighted(weighted, a.new_ones(graph.num_src, 1))
    return aggregate_weighted(weighted, a) - degree * b

"""A linear map and a linear aggregation, in the cheaper of the two orders."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear as apply_linear

from gnn_backend.layers.normalization import Weighted
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.ops.projected_attention import Projection

#: Reductions that commute with a linear map of the features.
LINEAR = ("sum", "mean")


def aggregate_weighted(weighted: Weighted, x: Tensor, reduce: str = "sum") -> Tensor:
    """Reduce the neighbours' rows, each times its edge's weight.

    Parameters
    ----------
    weighted : Weighted
    x : Tensor [num_src, *]
    reduce : str
        As for :func:`gnn_backend.ops.aggregate`.

    Returns
    -------
    Tensor [num_dst, *]

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit the graph.
    """
    message = "copy" if weighted.weight is None else "mul"
    out: Tensor = aggregate(weighted.graph, x, reduce, edge=weighted.weight, message=message)
    return out


def aggregate_linear(
    weighted: Weighted, x: Tensor, linear: Projection, *, reduce: str = "sum"
) -> Tensor:
    """Weighted sum or mean of the neighbours, mapped linearly.

    Parameters
    ----------
    weighted : Weighted
    x : Tensor [num_src, F]
    linear : Projection
        Weight [D, F] and bias [D], added once a node.
    reduce : {"sum", "mean"}

    Returns
    -------
    Tensor [num_dst, D]
    """
    if projects_first(weighted, x, linear.weight):
        out = aggregate_weighted(weighted, apply_linear(x, linear.weight), reduce)
        return out if linear.bias is None else out + linear.bias
    return apply_linear(aggregate_weighted(weighted, x, reduce), linear.weight, linear.bias)


def projects_first(weighted: Weighted, x: Tensor, weight: Tensor) -> bool:
    """Whether the linear map costs less before the aggregation than behind it.

    Numbers read and written decide, those of backward included: nothing is aggregated towards
    features that want no gradient, as in a first layer.
    """
    graph = weighted.graph
    width_out, width_in = weight.shape
    weights_learn = weighted.weight is not None and weighted.weight.requires_grad
    passes_out = 1 + (x.requires_grad or weight.requires_grad) + weights_learn
    passes_in = 1 + x.requires_grad + weights_learn
    dense = width_in + width_out
    before = graph.num_edges * width_out * passes_out + graph.num_src * dense
    behind = graph.num_edges * width_in * passes_in + graph.num_dst * dense
    return before <= behind

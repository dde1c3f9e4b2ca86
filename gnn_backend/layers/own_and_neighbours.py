"""Layers that add what a node has itself to what its neighbours have: GraphSAGE and GIN."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.layers.normalization import degrees
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.ops.projected_attention import Projection


def mean_with_self(adjacency: ScaledAdjacency, x_src: Tensor, x_dst: Tensor) -> Tensor:
    """Mean over a node and its neighbours, as the ``gcn`` variant of GraphSAGE takes it.

    Parameters
    ----------
    adjacency : ScaledAdjacency
        Its weights multiply the neighbours' rows; the divisor is the in-degree plus one.
    x_src : Tensor [num_src, F]
    x_dst : Tensor [num_dst, F]

    Returns
    -------
    Tensor [num_dst, F]
    """
    count = degrees(adjacency.graph, "dst").to(x_dst.dtype).unsqueeze(-1) + 1
    return (adjacency.neighbours(x_src) + x_dst) / count


def gin(
    adjacency: ScaledAdjacency,
    x_src: Tensor,
    x_dst: Tensor,
    eps: Tensor,
    reduce: str = "sum",
    first: Projection | None = None,
) -> Tensor:
    r"""Graph isomorphism layer (Xu et al., 2019) up to its network.

    .. math:: y_i = (1 + \epsilon) \, x^{dst}_i + \mathrm{reduce}_{e = (j \to i)} \, w_e x^{src}_j

    Parameters
    ----------
    adjacency : ScaledAdjacency
    x_src : Tensor [num_src, *, F]
    x_dst : Tensor [num_dst, *, F]
        If it is the very tensor ``x_src`` or its first rows, these are mapped once.
    eps : Tensor [1]
    reduce : {"sum", "mean", "max"}
    first : Projection, optional
        The network's first linear map, applied before the aggregation, which must be linear.

    Returns
    -------
    Tensor [num_dst, *, F], or with ``first`` [num_dst, *, D]
    """
    bias = None
    if first is not None:
        shared = x_dst.data_ptr() == x_src.data_ptr() and x_dst.stride() == x_src.stride()
        bias, weight = first.bias, first.weight.t()
        mapped = x_src @ weight
        x_dst = mapped[: len(x_dst)] if shared else x_dst @ weight
        x_src = mapped
    out = (1 + eps) * x_dst + adjacency.neighbours(x_src, reduce)
    return out if bias is None else out + bias


def gine(
    adjacency: ScaledAdjacency, x_src: Tensor, x_dst: Tensor, edge: Tensor, eps: Tensor
) -> Tensor:
    r"""GIN with features of edges (Hu et al., 2020) up to its network.

    .. math:: y_i = (1 + \epsilon) \, x^{dst}_i + \sum_{e = (j \to i)} \max(0, x^{src}_j + x_e)

    Parameters
    ----------
    adjacency : ScaledAdjacency
        Without weights.
    x_src, x_dst : Tensor [num_src, *], [num_dst, *]
    edge : Tensor [E, *] or [E]
        In the caller's edge order.
    eps : Tensor [1]

    Returns
    -------
    Tensor [num_dst, *]
    """
    total: Tensor = aggregate(adjacency.graph, x_src, "sum", edge=edge, message="add_relu")
    return (1 + eps) * x_dst + total

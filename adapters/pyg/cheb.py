"""PyG's ``ChebConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import linear

from gnn_backend.adapters.pyg.aggregating import (
    call_reason,
    is_reversed,
    layer_reason,
    messages_bytes,
    plain_graph,
    propagated,
    side_by_side,
)
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.normalization import kept_with_graph, sums_factored
from gnn_backend.adapters.pyg.reductions import kind_of
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.graph.graph import Direction
from gnn_backend.layers.normalization import degree_factors
from gnn_backend.layers.polynomial import Laplacian, chebyshev, chebyshev_mapped
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_METHODS = origins("torch_geometric.nn.conv.cheb_conv", "ChebConv", "message")


def eligible(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_weight: Any = None,
    batch: Any = None,
    lambda_max: Any = None,
) -> str | None:
    """Reason code why this call of ``ChebConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or call_reason(
        conv, x, edge_index, edge_weight, self_loops=True, pairs=False
    )


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    reason = layer_reason(conv, _METHODS)
    if reason is not None:
        return reason
    norm = type(conv).__norm__
    if norm.__qualname__ != "ChebConv.__norm__" or "__norm__" in vars(conv):
        return "overridden-message"
    return "no-operators" if len(conv.lins) < 2 else None


def edgewise_bytes(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_weight: Any = None,
    batch: Any = None,
    lambda_max: Any = None,
) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak."""
    return messages_bytes(x, edge_index, weighted=True)


def fast(
    conv: Any,
    x: Tensor,
    edge_index: Any,
    edge_weight: Tensor | None = None,
    batch: Tensor | None = None,
    lambda_max: Tensor | float | None = None,
) -> Tensor:
    """Fused ``ChebConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.ChebConv
    x : Tensor [N, F]
    edge_index : Tensor [2, E] or EdgeIndex
    edge_weight : Tensor [E], optional
    batch : Tensor [N], optional
    lambda_max : float or Tensor, optional

    Returns
    -------
    Tensor [N, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    """
    if edge_weight is None and batch is None:
        found = _by_nodes(conv, x, edge_index, lambda_max)
        if found is not None:
            return found
    weighted = _laplacian(conv, x, edge_index, edge_weight, batch, lambda_max)
    before, last = x, x
    out: Tensor = conv.lins[0](x)
    if len(conv.lins) > 1:
        last = propagated(conv, weighted, x)
        out = out + conv.lins[1](last)
    for lin in conv.lins[2:]:
        before, last = last, 2.0 * propagated(conv, weighted, last) - before
        out = out + lin.forward(last)
    return out if conv.bias is None else out + conv.bias


def _by_nodes(conv: Any, x: Tensor, edge_index: Any, lambda_max: Any) -> Tensor | None:
    """The forward with a factor for each node, or None where it takes weights of the edges.

    PyG normalises both ends by the degrees of ``edge_index[0]``, whatever the flow.
    """
    if conv.normalization != "sym" or not _is_eigenvalue(lambda_max):
        return None
    if kind_of(conv.aggr_module) != "sum" or not sums_factored(conv, x.dtype):
        return None
    graph = plain_graph(conv, x, edge_index)
    if _has_self_loops(graph):  # which are none in the Laplacian
        return None
    end: Direction = "dst" if is_reversed(conv) else "src"
    factors = degree_factors(graph, end, -0.5, x.dtype, isolated=0.0)
    adjacency = ScaledAdjacency(graph, None, factors, factors)
    laplacian = Laplacian(adjacency, 1.0 if lambda_max is None else 2.0 / lambda_max)
    maps = side_by_side(conv, adjacency, x, conv.lins, conv.bias)
    if maps is None:
        return None
    terms = len(conv.lins)
    found = chebyshev_mapped(laplacian, x, terms, maps)
    return linear(chebyshev(laplacian, x, terms), *maps) if found is None else found


def _is_eigenvalue(lambda_max: Any) -> bool:
    """Whether it is a number; without one PyG takes twice the Laplacian's largest entry, 2."""
    return lambda_max is None or (isinstance(lambda_max, (int, float)) and lambda_max > 0)


def _has_self_loops(graph: Graph) -> bool:
    found = graph.plans.get("has self-loops")
    if found is None:
        csr = graph.by_dst
        equal = expand_rows(csr.indptr, graph.num_edges) == csr.indices
        found = graph.plans["has self-loops"] = bool(equal.any())
    return found  # type: ignore[no-any-return]


def _laplacian(
    conv: Any, x: Tensor, edge_index: Any, edge_weight: Any, batch: Any, lambda_max: Any
) -> ScaledAdjacency:
    """The scaled Laplacian, by PyG's own function; kept where the edges alone decide it.

    Its edges are those that are no self-loops, in their order, and then one loop a node.
    """
    nodes = x.shape[-2]
    graph = graph_of(edge_index, Variant(nodes, nodes, True, is_reversed(conv)))

    def weights() -> Tensor:
        found: Tensor = conv.__norm__(
            edge_index, nodes, edge_weight, conv.normalization, lambda_max, dtype=x.dtype,
            batch=batch,
        )[1]  # fmt: skip
        return found

    if edge_weight is not None or batch is not None or isinstance(lambda_max, Tensor):
        return ScaledAdjacency(graph, weights())
    key = ("laplacian", conv.normalization, lambda_max, x.dtype)
    return kept_with_graph(graph, key, lambda: ScaledAdjacency(graph, weights()))

"""PyG's ``gcn_norm`` for fused layers: its factors are kept as long as what they depend on.

They multiply node tables. Without edge weights they depend on the edges alone and are kept with the
graph. Of edge weights that want no gradient they are kept with the tensor of these; of others they
are computed in each call. Where a layer does not sum, and in float16, in which a hub's sum may
overflow before it is divided, PyG's own function makes a weight for each edge.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters.pyg.aggregating import is_reversed
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_untracked, stamp
from gnn_backend.adapters.pyg.reductions import is_linear
from gnn_backend.graph import Graph
from gnn_backend.layers.normalization import symmetric, symmetric_by_weighted_in_degree
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency, streamed

_lock = threading.Lock()
_kept = WeakTensorKeyDictionary()  # weights -> (stamp, graph, key, adjacency)


def gcn_adjacency(
    conv: Any,
    x: Tensor,
    edge_index: Any,
    edge_weight: Tensor | None,
    *,
    self_loops: bool,
    improved: bool = False,
    stream: bool = True,
) -> ScaledAdjacency:
    """The adjacency that ``gcn_norm`` makes of a layer's edges.

    Parameters
    ----------
    conv : MessagePassing
    x : Tensor [N, F]
        As the layer got it; its dtype is that of the factors where no weights are given.
    edge_index : Tensor [2, E] or EdgeIndex
    edge_weight : Tensor [E], optional
    self_loops, improved : bool
        Arguments of ``gcn_norm``.
    stream : bool
        Whether the edges may be numbered anew, as the kernels like it.

    Raises
    ------
    InvalidArgument
        The edges do not fit the features.
    """
    nodes = x.shape[-2]
    graph = graph_of(edge_index, Variant(nodes, nodes, self_loops, is_reversed(conv)))
    dtype = x.dtype if edge_weight is None else edge_weight.dtype
    by_nodes = sums_factored(conv, dtype)
    if edge_weight is None and by_nodes:
        return symmetric(graph, dtype, source="dst", isolated=0.0)
    fill = 2.0 if improved else 1.0

    def compute() -> ScaledAdjacency:
        if by_nodes:
            assert edge_weight is not None
            weight = with_loops(graph, edge_index, edge_weight, fill) if self_loops else edge_weight
            return symmetric_by_weighted_in_degree(graph, weight)
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        return ScaledAdjacency(graph, gcn_norm(
            edge_index, edge_weight, nodes, improved, self_loops, conv.flow, x.dtype
        )[1])  # fmt: skip

    if edge_weight is None:
        return kept_with_graph(graph, ("gcn weights", dtype, stream), compute, stream)
    key = (improved, self_loops, conv.flow, stream, by_nodes)
    return _kept_with(edge_weight, graph, key, compute, stream)


def sums_factored(conv: Any, dtype: torch.dtype) -> bool:
    """Whether factors of nodes may leave the layer's aggregation."""
    return is_linear(conv.aggr_module) and dtype is not torch.float16


def with_loops(graph: Graph, edge_index: Any, weight: Tensor, fill: float) -> Tensor:
    """Weights of the edges once self-loops are there, as ``add_remaining_self_loops`` gives them.

    ``graph`` has the self-loops. Where the edges have none of their own, it is longer by all.
    """
    if graph.num_edges == weight.numel() + graph.num_dst:
        return torch.cat([weight, weight.new_full((graph.num_dst,), fill)])
    from torch_geometric.utils import add_remaining_self_loops

    found: Tensor = add_remaining_self_loops(edge_index, weight, fill, graph.num_dst)[1]
    return found


def kept_with_graph(
    graph: Graph, key: Any, compute: Callable[[], ScaledAdjacency], stream: bool = True
) -> ScaledAdjacency:
    """What ``compute`` makes of a graph alone, kept with it."""
    found = graph.plans.get(key)
    if found is None:
        # Tensors born in inference mode could not take part in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            found = graph.plans[key] = _streamed(compute(), stream)
    return found  # type: ignore[no-any-return]


def _streamed(adjacency: ScaledAdjacency, stream: bool) -> ScaledAdjacency:
    if not stream or adjacency.weight is None:
        return adjacency
    found = streamed(adjacency.graph, adjacency.weight)
    return found._replace(src=adjacency.src, dst=adjacency.dst)


def _kept_with(
    weight: Tensor, graph: Graph, key: Any, compute: Callable[[], ScaledAdjacency], stream: bool
) -> ScaledAdjacency:
    """What ``compute`` makes of weights, kept with them if it may be."""
    if weight.requires_grad or is_untracked(weight):
        return compute()
    now = stamp(weight)
    with _lock:
        found = _kept.get(weight)
    if found is not None and found[0] == now and found[1]() is graph and found[2] == key:
        kept: ScaledAdjacency = found[3]
        return kept if kept.weight is not None else kept._replace(weight=weight)
    with torch.inference_mode(False), torch.no_grad():
        result = _streamed(compute(), stream)
    if not any(tensor is not None and tensor.is_inference() for tensor in result[1:]):
        # What is kept must not hold the tensor that it is kept with.
        kept = result._replace(weight=None) if result.weight is weight else result
        with _lock:
            _kept[weight] = (now, weakref.ref(graph), key, kept)
    return result


def cached_adjacency(
    conv: Any, x: Tensor, edge_index: Any, edge_weight: Tensor | None, *, stream: bool = True
) -> ScaledAdjacency:
    """The edges and weights that a layer with ``cached=True`` keeps itself, as stock does."""
    if conv._cached_edge_index is None:
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        conv._cached_edge_index = gcn_norm(
            edge_index, edge_weight, x.shape[-2], getattr(conv, "improved", False),
            conv.add_self_loops, conv.flow, x.dtype,
        )  # fmt: skip
    edges, weight = conv._cached_edge_index
    nodes = x.shape[-2]
    graph = graph_of(edges, Variant(nodes, nodes, False, is_reversed(conv)))
    given = ScaledAdjacency(graph, weight)
    return _kept_with(weight, graph, "as given", lambda: given, True) if stream else given

"""PyG's ``gcn_norm`` for fused layers: its weights are kept as long as what they depend on.

Without edge weights they depend on the edges alone and are kept with the graph. Of edge weights
that want no gradient they are kept with the tensor of these; others are normalised in each call,
by PyG's own function, so that their gradient is PyG's as well.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.adapters.pyg.aggregating import is_reversed
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_untracked, stamp
from gnn_backend.graph import Graph
from gnn_backend.layers.normalization import Weighted, streamed, symmetric

_lock = threading.Lock()
_kept = WeakTensorKeyDictionary()  # weights -> (stamp, graph, key, Weighted)


def gcn_weighted(
    conv: Any,
    x: Tensor,
    edge_index: Any,
    edge_weight: Tensor | None,
    *,
    self_loops: bool,
    improved: bool = False,
    stream: bool = True,
) -> Weighted:
    """The graph and weights that ``gcn_norm`` makes of a layer's edges.

    Parameters
    ----------
    conv : MessagePassing
    x : Tensor [N, F]
        As the layer got it; its dtype is that of the weights where none are given.
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
    if edge_weight is None and stream:
        return symmetric(graph, x.dtype)

    def compute() -> Tensor:
        from torch_geometric.nn.conv.gcn_conv import gcn_norm

        found: Tensor = gcn_norm(
            edge_index, edge_weight, nodes, improved, self_loops, conv.flow, x.dtype
        )[1]
        return found

    if edge_weight is None:
        return Weighted(graph, compute())
    key = (improved, self_loops, conv.flow, stream)
    return _kept_with(edge_weight, graph, key, compute, stream)


def _kept_with(weight: Tensor, graph: Graph, key: Any, compute: Any, stream: bool) -> Weighted:
    """What ``compute`` makes of weights, kept with them if it may be."""
    if weight.requires_grad or is_untracked(weight):
        return Weighted(graph, compute())
    now = stamp(weight)
    with _lock:
        found = _kept.get(weight)
    if found is not None and found[0] == now and found[1]() is graph and found[2] == key:
        kept: Weighted = found[3]
        return kept
    with torch.inference_mode(False), torch.no_grad():
        made = compute()
        result = streamed(graph, made) if stream else Weighted(graph, made)
    if result.weight is not weight and not (result.weight is None or result.weight.is_inference()):
        with _lock:
            _kept[weight] = (now, weakref.ref(graph), key, result)
    return result


def cached_weighted(
    conv: Any, x: Tensor, edge_index: Any, edge_weight: Tensor | None, *, stream: bool = True
) -> Weighted:
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
    if not stream:
        return Weighted(graph, weight)
    return _kept_with(weight, graph, "as given", lambda: weight, True)

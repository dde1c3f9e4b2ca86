"""What PyG's aggregating layers have in common: which calls are eligible, and their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.attention import (
    LINEAR,
    PLAIN_TENSORS,
    edge_reason,
    feature_reason,
    given_features,
    sizes_of,
)
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list, num_edges
from gnn_backend.adapters.pyg.message_passing import Origins, changed_reason
from gnn_backend.adapters.pyg.reductions import aggregation_reason, is_linear, kind_of, reduce_by
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.layers.linear_aggregation import aggregate_linear
from gnn_backend.layers.projection import projection_of
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency
from gnn_backend.ops.projected_attention import Projection
from gnn_backend.runtime import launch


def layer_reason(
    conv: Any,
    methods: Origins,
    *,
    aggregation: Callable[[Any], str | None] = aggregation_reason,
    node_dim: int = -2,
) -> str | None:
    """Reason code if the layer alone rules out a fused path, or None."""
    if torch.compiler.is_compiling():
        return "compiled"
    return changed_reason(conv, methods, node_dim=node_dim, aggregation=aggregation)


def call_reason(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_weight: Any = None,
    *,
    size: Any = None,
    self_loops: bool = False,
    pairs: bool = True,
) -> str | None:
    """Reason code why the arguments of a call have no fused path, or None.

    Parameters
    ----------
    conv : MessagePassing
    x : Tensor [N, F] or pair of them, the second of which may be None
    edge_index : Tensor [2, E] or adjacency
    edge_weight : Tensor [E] or [E, 1], optional
    size : (num_src, num_dst), optional
    self_loops : bool
        Whether the layer adds them.
    pairs : bool
        Whether ``x`` may be a pair.

    Raises
    ------
    InvalidArgument
        The stock layer rejects the arguments with its own error.
    """
    first = x[0] if isinstance(x, (tuple, list)) and x else x
    if not isinstance(first, Tensor) or not (pairs or first is x):
        return "input-form"
    given = given_features(x)
    reason = feature_reason(given, first.device, first.dtype, engine=aggregation_engine)
    if reason is not None:
        return reason
    sizes = sizes_of(x, size)
    if sizes is None:
        return "input-form"
    if isinstance(x, (tuple, list)) and conv.flow == "target_to_source":
        return "flow"  # messages then come from the second of the pair
    if isinstance(edge_index, Tensor) and not is_edge_list(edge_index):
        return "adjacency"
    square = sizes[0] == sizes[1]
    reason = edge_reason(conv, edge_index, first.device, self_loops=self_loops, square=square)
    if reason is not None:
        return reason
    if not is_edge_list(edge_index):
        return "adjacency"
    return None if edge_weight is None else weight_reason(edge_weight, edge_index, first)


def aggregation_engine(device: torch.device, dtype: torch.dtype) -> Any:
    """The engine of aggregation; tests put another in its place."""
    return launch.aggregation_engine(device, dtype)


def weight_reason(edge_weight: Any, edge_index: Tensor, x: Tensor) -> str | None:
    """Reason code why weights of the edges are not fused, or None.

    Raises
    ------
    InvalidArgument
        They are not one for each edge.
    """
    if type(edge_weight) not in PLAIN_TENSORS or edge_weight.layout is not torch.strided:
        return "edge-features"
    if edge_weight.device != x.device:
        return "device-mixed"
    if not edge_weight.is_floating_point():
        return "edge-features"
    if edge_weight.numel() != edge_index.shape[1]:
        expected = f"[{edge_index.shape[1]}]"
        raise invalid("edge_weight", "wrong number", tuple(edge_weight.shape), expected)
    return None if edge_weight.dim() == 1 else "edge-features"


def is_reversed(conv: Any) -> bool:
    """Whether messages run from ``edge_index[1]`` to ``edge_index[0]``."""
    return bool(conv.flow == "target_to_source")


def plain_graph(conv: Any, x: Any, edge_index: Any, size: Any = None) -> Graph:
    """The graph of a layer that leaves the edges as they are."""
    sizes = sizes_of(x, size)
    assert sizes is not None
    return graph_of(edge_index, Variant(*sizes, False, is_reversed(conv)))


def propagated(conv: Any, adjacency: ScaledAdjacency, x: Tensor) -> Tensor:
    """What ``propagate`` returns for messages ``x_j``, times the edge's weight if there is one.

    Factors of nodes are those of an adjacency for sums and means alone.
    """
    graph, weight, src, dst = adjacency
    if weight is None and src is None and dst is None:
        return reduce_by(conv.aggr_module, graph, x)
    adjacency, x = _in_one_dtype(adjacency, x)
    _, weight, src, dst = adjacency
    if src is not None or dst is not None:
        return adjacency.times(x, reduce=str(kind_of(conv.aggr_module)))
    return reduce_by(conv.aggr_module, graph, x, weight, "mul")


def _in_one_dtype(adjacency: ScaledAdjacency, x: Tensor) -> tuple[ScaledAdjacency, Tensor]:
    """Both in the dtype of stock's messages, by type promotion."""
    graph, *given = adjacency
    if is_of(adjacency, x.dtype):
        return adjacency, x
    dtype = x.dtype
    for tensor in given:
        dtype = dtype if tensor is None else torch.promote_types(dtype, tensor.dtype)
    cast = (None if tensor is None else tensor.to(dtype) for tensor in given)
    return ScaledAdjacency(graph, *cast), x.to(dtype)


def is_of(adjacency: ScaledAdjacency, dtype: torch.dtype) -> bool:
    """Whether all that an adjacency holds is of a dtype."""
    _, weight, src, dst = adjacency
    return (
        (weight is None or weight.dtype is dtype)
        and (src is None or src.dtype is dtype)
        and (dst is None or dst.dtype is dtype)
    )


def propagated_linear(
    conv: Any,
    adjacency: ScaledAdjacency,
    x: Tensor,
    linear: Any,
    *,
    behind: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """``propagate`` and a linear module, in the cheaper order where they commute.

    Parameters
    ----------
    conv : MessagePassing
    adjacency : ScaledAdjacency
    x : Tensor [num_src, F]
    linear : torch_geometric.nn.Linear
    behind : bool
        Whether the stock layer applies it behind the aggregation, a bias once a node.
    bias : Tensor [D], optional
        Added once a node.
    """
    found = commuting(conv, adjacency, x, linear)
    if found is not None and (behind or found.bias is None):
        if found.bias is None and bias is not None and bias.dtype is x.dtype:
            found, bias = Projection(found.weight, bias), None
        out = aggregate_linear(adjacency, x, found, reduce=str(kind_of(conv.aggr_module)))
    elif behind:
        out = linear(propagated(conv, adjacency, x))
    else:
        out = propagated(conv, adjacency, linear(x))
    return out if bias is None else out + bias


def commuting(conv: Any, adjacency: ScaledAdjacency, x: Tensor, linear: Any) -> Projection | None:
    """What a linear module applies, if it may change places with ``propagate``; else None."""
    if not is_linear(conv.aggr_module) or not is_of(adjacency, x.dtype):
        return None
    return projection(linear, x)


def side_by_side(
    conv: Any, adjacency: ScaledAdjacency, x: Tensor, linears: Any, bias: Tensor | None
) -> Projection | None:
    """Maps of the powers of a summing layer's adjacency beside each other, [D, K F]; else None.

    Parameters
    ----------
    conv : MessagePassing
    adjacency : ScaledAdjacency
    x : Tensor [N, F]
    linears : iterable of torch_geometric.nn.Linear
        Without bias.
    bias : Tensor [D], optional
    """
    if kind_of(conv.aggr_module) != "sum" or (bias is not None and bias.dtype is not x.dtype):
        return None
    found = [commuting(conv, adjacency, x, linear) for linear in linears]
    maps = [one.weight for one in found if one is not None and one.bias is None]
    return Projection(torch.cat(maps, dim=1), bias) if len(maps) == len(found) else None


def projection(linear: Any, x: Tensor) -> Projection | None:
    """Weight and bias of a linear module that need not be called, or None."""
    weight = linear._parameters.get("weight") if isinstance(linear, torch.nn.Module) else None
    if weight is None or type(weight) not in PLAIN_TENSORS or weight.dim() != 2:
        return None
    found = projection_of(linear, LINEAR, x.dtype, weight.shape[0])
    return found if found is not None and weight.shape[1] == x.shape[-1] else None


def messages_bytes(x: Any, edge_index: Any, width: int | None = None, *, weighted: bool) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak.

    The gathered sources and, with weights, the messages.
    """
    first = x if isinstance(x, Tensor) else x[0]
    columns = first.shape[-1] if width is None else width
    return (1 + weighted) * num_edges(edge_index) * columns * first.element_size()

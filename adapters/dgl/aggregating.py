"""What DGL's aggregating layers have in common: which calls are eligible, and their operands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.attention import PLAIN_TENSORS, graph_reason
from gnn_backend.adapters.dgl.graph import entry
from gnn_backend.config import get_config
from gnn_backend.errors import Unsupported, invalid
from gnn_backend.graph import Graph
from gnn_backend.runtime.launch import aggregation_engine


def tensors_reason(features: Iterable[Any], parameters: Iterable[Any] = ()) -> str | None:
    """Reason code why tensors have no fused path together, or None.

    Parameters
    ----------
    features : iterable of Tensor
        The first one's dtype and device are those of the call.
    parameters : iterable of Tensor or None
    """
    given = [*features, *(p for p in parameters if p is not None)]
    for tensor in given:
        if not isinstance(tensor, Tensor):
            return "input-form"
        if type(tensor) not in PLAIN_TENSORS:
            return "subclass"
        if not (tensor.is_cpu or tensor.is_cuda):
            return "device"
        if tensor.layout is not torch.strided:
            return "input-form"
    first = given[0]
    if any(tensor.device != first.device for tensor in given):
        return "device-mixed"
    if not first.is_floating_point():
        return "dtype-unsupported"
    if any(tensor.dtype != first.dtype for tensor in given):
        return "dtype-mixed"
    return "autocast" if torch.is_autocast_enabled(first.device.type) else None


def call_reason(
    graph: Any,
    features: Iterable[Any],
    parameters: Iterable[Any] = (),
    *,
    plain_sum: bool = False,
) -> str | None:
    """Reason code why a call on these tensors has no fused path, or None.

    Parameters
    ----------
    graph : DGLGraph
    features : iterable of Tensor
        Of nodes or edges.
    parameters : iterable of Tensor or None
        Of the layer.
    plain_sum : bool
        Whether the layer's only aggregation is a sum or mean without weights, as wide as stock's.
    """
    features = tuple(features)
    reason = tensors_reason(features, parameters)
    reason = reason or graph_reason(graph, features[0].device)
    if reason is not None:
        return reason
    if graph.num_edges() == 0 or any(tensor.numel() == 0 for tensor in features):
        return "empty"
    return engine_reason(features[0], plain_sum=plain_sum)


def engine_reason(x: Tensor, *, plain_sum: bool = False) -> str | None:
    """Reason code why messages like ``x`` are not aggregated by kernels, or None.

    Plain torch, which would answer without an engine, is slower than DGL's own operators; and on
    the CPU these are no slower at sums without weights than our kernels, which win with weights,
    extremes, and whatever DGL computes edge by edge.
    """
    try:
        aggregation_engine(x.device, x.dtype)
    except Unsupported as error:
        return error.reason
    return "cpu-sums" if plain_sum and x.is_cpu and get_config().cpu_target == "numba" else None


def ends_of(graph: Any, feat: Any, *, dims: int = 0) -> tuple[Tensor, Tensor] | None:
    """Features of sources and destinations, as DGL takes them apart, or None: in no known form.

    Parameters
    ----------
    graph : DGLGraph
    feat : Tensor or pair of Tensor
        Of a block, the destinations are the first rows of the sources.
    dims : int
        How many dimensions features must have; 0: two or more.
    """
    if not isinstance(graph, DGLGraph):
        return None
    pair = feat if isinstance(feat, tuple) else (feat, feat)
    if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        return None
    if any(part.dim() != dims if dims else part.dim() < 2 for part in pair):
        return None
    source, target = pair
    if graph.is_block and not isinstance(feat, tuple):
        target = target[: graph.number_of_dst_nodes()]
    counts = (graph.number_of_src_nodes(), graph.number_of_dst_nodes())
    return (source, target) if (len(source), len(target)) == counts else None


def source_of(graph: Any, feat: Any) -> Tensor | None:
    """Features of sources [num_src, *, F], alone or the first of a pair; None: in no known form."""
    if not isinstance(graph, DGLGraph):
        return None
    pair = feat if isinstance(feat, tuple) else (feat, feat)
    if len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        return None
    found: Tensor = pair[0]
    return found if found.dim() >= 2 and len(found) == graph.number_of_src_nodes() else None


def one_table(graph: Any, feat: Any, *, dims: int = 0) -> Tensor | None:
    """Features of a homogeneous graph's nodes, or None: another graph, or in no known form."""
    if not isinstance(graph, DGLGraph) or graph.is_block or not graph.is_homogeneous:
        return None
    found = None if isinstance(feat, tuple) else ends_of(graph, feat, dims=dims)
    return None if found is None else found[0]


def is_scalar_weight(graph: Any, weight: Any) -> bool:
    """Whether ``weight`` holds one number for each edge, [E] or [E, 1, ...]."""
    count = graph.num_edges()
    return isinstance(weight, Tensor) and weight.shape[:1] == (count,) and weight.numel() == count


def flat_weight(weight: Tensor | None) -> Tensor | None:
    """Weights that :func:`is_scalar_weight` accepts, as [E]."""
    return None if weight is None else weight.reshape(-1)


def graph_only(graph: DGLGraph) -> Graph:
    """The Graph of a DGLGraph, for a layer that allows destinations without in-edges."""
    return entry(graph._graph).build(graph._graph)


def check_positive(weight: Tensor) -> None:
    """Refuse what has no weighted degree to the power of -1/2, with the host's error.

    Raises
    ------
    InvalidArgument
    """
    if bool((weight <= 0).any()):
        raise invalid("edge_weight", "not positive", float(weight.min()), "weights above 0")


def edge_features_as(edge: Tensor, x: Tensor) -> Tensor | None:
    """Features of edges in a form that adds to those of nodes, or None where there is none."""
    tail = tuple(x.shape[1:])
    if tuple(edge.shape[1:]) == tail:
        return edge
    if edge.dim() == x.dim() and all(size == 1 for size in edge.shape[1:]):
        return edge.reshape(-1)
    return None

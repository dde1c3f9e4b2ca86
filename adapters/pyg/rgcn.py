"""PyG's ``RGCNConv`` and ``FastRGCNConv``: which calls run fused, and the fused forward.

Of each relation apart the neighbours' sum, mean or maximum is mapped by the relation's weight, as
the layers' documentation says. ``FastRGCNConv`` differs in how it computes this alone. Numbers of
nodes, which stand for one-hot features, pick rows of the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import (
    aggregation_engine,
    call_reason,
    is_reversed,
    layer_reason,
)
from gnn_backend.adapters.pyg.attention import PLAIN_TENSORS, edge_reason
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.reductions import kind_of
from gnn_backend.adapters.pyg.typed import by_blocks, typed_graph, types_reason, weight_of
from gnn_backend.errors import Unsupported
from gnn_backend.graph.relations import relations_of
from gnn_backend.layers.relational.forms import rgcn_max, rgcn_mean
from gnn_backend.layers.relational.node_numbers import rgcn_of_numbers
from gnn_backend.layers.relational.rgcn import rgcn

_MODULE = "torch_geometric.nn.conv.rgcn_conv"
_METHODS = origins(_MODULE, "RGCNConv", "message", "message_and_aggregate")
_FAST_METHODS = origins(
    _MODULE, "FastRGCNConv", "message", "aggregate",
    inherited={"message_and_aggregate": (_MODULE, "RGCNConv.message_and_aggregate")},
)  # fmt: skip
_PROGRAMS = {"sum": rgcn, "mean": rgcn_mean, "max": rgcn_max}


def eligible(conv: Any, x: Any, edge_index: Any, edge_type: Any = None) -> str | None:
    """Reason code why this call of ``RGCNConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    return static_reason(conv) or _call_reason(conv, x, edge_index, edge_type)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    fast = any(cls.__name__ == "FastRGCNConv" for cls in type(conv).__mro__)
    if fast and kind_of(conv.aggr_module) == "max":
        return "aggregation"  # which stock refuses
    methods = _FAST_METHODS if fast else _METHODS
    return layer_reason(conv, methods, aggregation=_aggregation_reason, node_dim=0)


def edgewise_bytes(conv: Any, x: Any, edge_index: Any, edge_type: Any = None) -> int:
    """Bytes of what the stock forward keeps for each relation: its neighbours' rows aggregated."""
    width, size = conv.weight.shape[-1], conv.weight.element_size()
    dst = x[1] if isinstance(x, (tuple, list)) else x
    if isinstance(dst, Tensor) and dst.is_floating_point():
        width = dst.shape[-1]
    rows = conv.in_channels_l if dst is None else len(dst)
    return int(conv.num_relations * rows * width * size)


def fast(conv: Any, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Tensor:
    """Fused ``RGCNConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.RGCNConv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
        Or numbers of nodes, [N] or a pair of such; None: the nodes are numbered as they stand.
    edge_index : Tensor [2, E] or EdgeIndex
    edge_type : integer Tensor [E]

    Returns
    -------
    Tensor [num_dst, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features, or a type or number is out of range.
    """
    assert edge_type is not None
    src, dst = x if isinstance(x, (tuple, list)) else (x, x)
    weight, reduce = weight_of(conv, conv.weight, conv.comp), str(kind_of(conv.aggr_module))
    if src is None or not src.is_floating_point():
        sizes = [conv.in_channels_l if part is None else len(part) for part in (src, dst)]
        graph = graph_of(edge_index, Variant(sizes[0], sizes[1], False, is_reversed(conv)))
        relations = relations_of(graph, edge_type, conv.num_relations)
        out = rgcn_of_numbers(relations, src, weight, reduce)
        own = conv.root if dst is None or conv.root is None else conv.root[dst]
    else:
        relations = typed_graph(conv, x, edge_index, edge_type)
        found = _PROGRAMS[reduce](relations, x=by_blocks(src, weight), weight=weight)
        assert isinstance(found, Tensor)
        out, own = found.flatten(1), None if conv.root is None else dst @ conv.root
    out = out if own is None else out + own
    return out if conv.bias is None else out + conv.bias


def _aggregation_reason(aggregation: Any) -> str | None:
    kind = kind_of(aggregation)
    if kind not in _PROGRAMS:
        return "aggregation"
    return "hooks" if aggregation._forward_pre_hooks or aggregation._forward_hooks else None


def _call_reason(conv: Any, x: Any, edge_index: Any, edge_type: Any) -> str | None:
    given = x if isinstance(x, (tuple, list)) else (x, x)
    if x is None or any(isinstance(part, Tensor) and part.dim() == 1 for part in given):
        return _numbers_reason(conv, given, edge_index, edge_type)
    if len(given) != 2 or given[0] is None or given[1] is None:
        return "input-form"
    reason = call_reason(conv, x, edge_index)
    if reason is not None:
        return reason
    first = x[0] if isinstance(x, (tuple, list)) else x
    if first.dtype is not conv.weight.dtype:
        return "dtype-mixed"
    return types_reason(edge_type, edge_index, first.device)


def _numbers_reason(conv: Any, given: Any, edge_index: Any, edge_type: Any) -> str | None:
    """The same for numbers of nodes."""
    weight = conv.weight
    if conv.num_blocks is not None or len(given) != 2 or (given[0] is None) != (given[1] is None):
        return "input-form"  # the first of which stock refuses
    for part in given:
        if part is None:
            continue
        if type(part) not in PLAIN_TENSORS or part.dim() != 1:
            return "input-form"
        if part.dtype not in (torch.int32, torch.int64):
            return "input-form"
        if part.device != weight.device:
            return "device-mixed"
    try:
        aggregation_engine(weight.device, weight.dtype)
    except Unsupported as error:
        return error.reason
    if given[0] is not given[1] and conv.flow == "target_to_source":
        return "flow"
    square = given[0] is given[1] or len(given[0]) == len(given[1])
    reason = edge_reason(conv, edge_index, weight.device, self_loops=False, square=square)
    if reason is not None:
        return reason
    if not is_edge_list(edge_index):
        return "adjacency"
    return types_reason(edge_type, edge_index, weight.device)

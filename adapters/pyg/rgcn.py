"""PyG's ``RGCNConv`` and ``FastRGCNConv``: which calls run fused, and the fused forward.

Of each relation apart the neighbours' sum, mean or maximum is mapped by the relation's weight, as
the layers' documentation says. ``FastRGCNConv`` differs in how it computes this alone.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import call_reason, layer_reason
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.reductions import kind_of
from gnn_backend.adapters.pyg.typed import by_blocks, typed_graph, types_reason, weight_of
from gnn_backend.layers.relational.forms import rgcn_max, rgcn_mean
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
    src, dst = x if isinstance(x, (tuple, list)) else (x, x)
    return int(conv.num_relations * len(dst) * src.shape[-1] * src.element_size())


def fast(conv: Any, x: Any, edge_index: Any, edge_type: Tensor | None = None) -> Tensor:
    """Fused ``RGCNConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.RGCNConv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst]
    edge_index : Tensor [2, E] or EdgeIndex
    edge_type : integer Tensor [E]

    Returns
    -------
    Tensor [num_dst, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features, or a type is out of range.
    """
    assert edge_type is not None
    src, dst = x if isinstance(x, (tuple, list)) else (x, x)
    relations = typed_graph(conv, x, edge_index, edge_type)
    weight = weight_of(conv, conv.weight, conv.comp)
    aggregate = _PROGRAMS[str(kind_of(conv.aggr_module))]
    out = aggregate(relations, x=by_blocks(src, weight), weight=weight)
    assert isinstance(out, Tensor)
    out = out.flatten(1)
    if conv.root is not None:
        out = out + dst @ conv.root
    return out if conv.bias is None else out + conv.bias


def _aggregation_reason(aggregation: Any) -> str | None:
    kind = kind_of(aggregation)
    if kind not in _PROGRAMS:
        return "aggregation"
    return "hooks" if aggregation._forward_pre_hooks or aggregation._forward_hooks else None


def _call_reason(conv: Any, x: Any, edge_index: Any, edge_type: Any) -> str | None:
    if isinstance(x, (tuple, list)) and (len(x) != 2 or x[0] is None or x[1] is None):
        return "input-form"
    reason = call_reason(conv, x, edge_index)
    if reason is not None:
        return reason
    first = x[0] if isinstance(x, (tuple, list)) else x
    if first.dtype is not conv.weight.dtype:
        return "dtype-mixed"
    return types_reason(edge_type, edge_index, first.device)

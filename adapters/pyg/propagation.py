"""Any ``MessagePassing`` layer: its ``propagate``, fused where the message has a known form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.aggregating import call_reason, propagated, weight_reason
from gnn_backend.adapters.pyg.attention import sizes_of
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list, num_edges
from gnn_backend.adapters.pyg.message_passing import Origins, changed_reason
from gnn_backend.adapters.pyg.messages import Form, form_of
from gnn_backend.adapters.pyg.reductions import aggregation_reason
from gnn_backend.errors import Unsupported
from gnn_backend.layers.scaled_adjacency import ScaledAdjacency

_BASE = "torch_geometric.nn.conv.message_passing"
#: What a class of any kind leaves as it is; its message is judged by its form.
_METHODS = Origins(
    tuple((name, _BASE, f"MessagePassing.{name}") for name in ("aggregate", "update")),
    ("propagate",),
)


def eligible(conv: Any, edge_index: Any, *args: Any, **kwargs: Any) -> str | None:
    """Reason code why this call of a layer's ``propagate`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock code rejects with its own error.
    """
    reason = static_reason(conv)
    if reason is not None:
        return reason
    given = _named(conv, args, kwargs)
    if given is None:
        return "input-form"
    size, named = given
    form = _form(conv)
    x, weight = named.get(form.x), None if form.weight is None else named.get(form.weight)
    if weight is None and form.weight is not None and not form.optional:
        return "input-form"
    if not isinstance(x, Tensor) and not (isinstance(x, (tuple, list)) and len(x) == 2):
        return "input-form"
    if conv.fuse and conv.SUPPORTS_FUSED_EDGE_INDEX and type(edge_index) is not Tensor:
        return "overridden-message"  # by message_and_aggregate
    first, pair, size = _ends(x, edge_index, size)
    if not isinstance(first, Tensor) or (size is not None and None in tuple(size)):
        return "input-form"
    reason = call_reason(conv, pair, edge_index, size=size)
    if reason is not None or weight is None:
        return reason
    if not form.column:  # multiplies as it is: [E, 1] or [E, F]
        fits = isinstance(weight, Tensor) and weight.dim() == 2
        if not fits or weight.shape not in (
            (num_edges(edge_index), w) for w in (1, first.shape[1])
        ):
            return "edge-features"
        weight = weight[:, 0]
    return weight_reason(weight, edge_index, first)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    if torch.compiler.is_compiling():
        return "compiled"
    if conv.aggr_module is None:
        return "aggr-changed"
    reason = changed_reason(conv, _METHODS, node_dim=conv.node_dim, aggregation=aggregation_reason)
    if reason is not None:
        return reason
    if conv.node_dim not in (-2, 0):
        return "node-dim"
    return "overridden-message" if form_of(type(conv).message) is None else None


def edgewise_bytes(conv: Any, edge_index: Any, *args: Any, **kwargs: Any) -> int:
    """Bytes of [E, F] tensors that the stock code holds at its peak.

    The gathered sources and, with weights, the messages.
    """
    given, form = _named(conv, args, kwargs), _form(conv)
    assert given is not None
    x = given[1][form.x]
    first = x if isinstance(x, Tensor) else x[0]
    held = 1 if form.weight is None or given[1].get(form.weight) is None else 2
    return (
        held
        * num_edges(edge_index)
        * int(first[0].numel() if len(first) else 0)
        * (first.element_size())
    )


def fast(conv: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Fused ``propagate`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.MessagePassing
    edge_index : Tensor [2, E] or EdgeIndex
    *args, **kwargs
        As the layer's ``propagate`` takes them: ``size`` and what messages are made of.

    Returns
    -------
    Tensor [num_dst, D]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock code has its own error for it.
    Unsupported
        The arguments have a form that is not read.
    """
    given, form = _named(conv, args, kwargs), _form(conv)
    if given is None:
        raise Unsupported("input-form")
    size, named = given
    x, pair, size = _ends(named[form.x], edge_index, size)
    sizes = sizes_of(pair, size)
    assert sizes is not None
    graph = graph_of(edge_index, Variant(*sizes, False, conv.flow == "target_to_source"))
    weight = None if form.weight is None else named.get(form.weight)
    if weight is not None and form.column:
        weight = weight.reshape(-1)
    return propagated(conv, ScaledAdjacency(graph, weight), x)


def _form(conv: Any) -> Form:
    form = form_of(type(conv).message)
    assert form is not None
    return form


def _ends(x: Any, edge_index: Any, size: Any) -> tuple[Any, Any, Any]:
    """The sources' features, features as a layer takes them, and the size that holds.

    Features that are no pair are the sources' alone: ``size`` says how many destinations there are.
    """
    if (
        isinstance(edge_index, Tensor)
        and type(edge_index) is not Tensor
        and is_edge_list(edge_index)
    ):
        edges: Any = edge_index
        size = (edges.num_rows, edges.num_cols)
    if not isinstance(x, Tensor):
        return x[0], x, size
    if size is None or tuple(size) == (x.shape[0],) * 2:
        return x, x, None
    return x, (x, None), size


def _named(
    conv: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    """``size`` and the other arguments by name; None where they are given by place.

    PyG's own ``propagate`` and the one that it writes for a class differ in the order.
    """
    if args:
        return None
    named = dict(kwargs)
    return named.pop("size", None), named

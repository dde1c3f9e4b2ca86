"""PyG's ``SuperGATConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.attention import (
    LINEAR,
    dropout_of,
    edge_reason,
    feature_reason,
    heads_of,
    message_dtype,
    own,
    rewritten,
    settings_reason,
)
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list, num_edges
from gnn_backend.adapters.pyg.message_passing import changed_reason, origins
from gnn_backend.adapters.pyg.pair_sampling import absent_pairs, takes_all_edges
from gnn_backend.errors import InvalidArgument, Unsupported
from gnn_backend.graph import Graph
from gnn_backend.layers.projection import projection_of
from gnn_backend.layers.supergat import pair_logits, supergat
from gnn_backend.ops.projected_attention import Projection

_METHODS = origins("torch_geometric.nn.conv.supergat_conv", "SuperGATConv", "message")
_OWN = ("get_attention", "positive_sampling", "negative_sampling")


def eligible(
    conv: Any, x: Any, edge_index: Any, neg_edge_index: Any = None, batch: Any = None
) -> str | None:
    """Reason code why this call of ``SuperGATConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The edges are something that the stock layer rejects with its own error.
    """
    if not isinstance(x, Tensor):
        return "input-form"
    weight = conv.lin.weight
    reason = static_reason(conv) or feature_reason(x, weight.device, weight.dtype)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return "compiled"
    if not is_edge_list(edge_index):
        return "graph-type"
    if neg_edge_index is not None and not is_edge_list(neg_edge_index):
        return "input-form"
    loops = bool(conv.add_self_loops)
    return edge_reason(conv, edge_index, weight.device, self_loops=loops, square=True)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    mixed = conv.attention_type == "MX"
    shape = (1, conv.heads, conv.out_channels)
    for name in ("att_l", "att_r"):
        att = own(conv, name)
        if (att is None) == mixed or (mixed and att.shape != shape):
            return "parametrized"
    module = "torch_geometric.nn.conv.supergat_conv"
    if any(getattr(type(conv), n).__module__ != module or n in conv.__dict__ for n in _OWN):
        return "overridden-message"
    return settings_reason(conv) or changed_reason(conv, _METHODS)


def edgewise_bytes(
    conv: Any, x: Any, edge_index: Any, neg_edge_index: Any = None, batch: Any = None
) -> int:
    """Bytes of [E, H, C] tensors that the stock forward holds at its peak.

    Five of them: both ends, their product, the products with the attention vectors, the messages.
    """
    row = conv.heads * conv.out_channels * conv.lin.weight.element_size()
    return 5 * num_edges(edge_index) * row


def fast(
    conv: Any,
    x: Tensor,
    edge_index: Tensor,
    neg_edge_index: Tensor | None = None,
    batch: Tensor | None = None,
) -> Tensor:
    """Fused ``SuperGATConv.forward`` for a call that :func:`eligible` accepts.

    In training the layer's attention loss is prepared from the pairs of nodes that stock would
    sample, without gathering their ends.

    Parameters
    ----------
    conv : torch_geometric.nn.SuperGATConv
    x : Tensor [N, F]
    edge_index : Tensor [2, E] or EdgeIndex
    neg_edge_index : Tensor [2, E_neg], optional
    batch : Tensor [N], optional

    Returns
    -------
    Tensor [N, H * C] (``concat``) or [N, C]

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    Unsupported
        The operator has no kernel for these operands.
    """
    rows = x.shape[0]
    variant = Variant(rows, rows, bool(conv.add_self_loops), conv.flow == "target_to_source")
    graph = graph_of(edge_index, variant)
    given = neg_edge_index if conv.training else None
    others = None if given is None else _given_pairs(given, rows)  # before anything is drawn
    width = conv.heads * conv.out_channels
    projection = None if conv.training else projection_of(conv.lin, LINEAR, x.dtype, width)
    features = conv.lin(x) if projection is None else x
    out = _attend(conv, graph, features, projection)
    if conv.training:
        table = features.view(-1, conv.heads, conv.out_channels)
        edges = _Edges(edge_index, variant, graph)
        sampled = _sampled(conv, edges)
        if others is None:
            others = _absent(conv, edges, batch)
        _prepare_loss(conv, table, sampled, others)
    return out


def _attend(conv: Any, graph: Graph, features: Tensor, projection: Projection | None) -> Tensor:
    """Attention, the combination of the heads and the bias, in the dtype of stock's messages."""
    att_l, att_r, bias = own(conv, "att_l"), own(conv, "att_r"), conv.bias
    mixed = [t for t in (features, att_l, att_r) if t is not None]
    dtype = message_dtype(features.device, *mixed)
    promotes = bias is not None and bias.dtype is not dtype
    out = supergat(
        graph, features.to(dtype), projection,
        *(None if att is None else att.to(dtype) for att in (att_l, att_r)),
        num_heads=conv.heads, negative_slope=float(conv.negative_slope),
        dropout_p=dropout_of(conv), heads=heads_of(conv), bias=None if promotes else bias,
    )  # fmt: skip
    return out + bias if promotes else out


class _Edges(NamedTuple):
    """The edges of a call: the caller's, what becomes of them, and the graph that they make."""

    given: Tensor
    variant: Variant
    graph: Graph

    def rewritten(self) -> Tensor:
        """As the stock layer has them once self-loops are rewritten."""
        return rewritten(self.given, None, self.variant, None)[0]


def _sampled(conv: Any, edges: _Edges) -> Graph:
    """Edges that the layer samples; where it takes all, the graph, whose rows need no sorting."""
    if takes_all_edges(conv):
        return edges.graph
    return _pairs(conv.positive_sampling(edges.rewritten()), edges.variant.num_src)


def _absent(conv: Any, edges: _Edges, batch: Tensor | None) -> Graph:
    """Pairs of nodes without an edge, of the random numbers that stock draws."""
    rows = edges.variant.num_src
    pairs = absent_pairs(conv, edges.given, edges.graph, batch)
    if pairs is not None:
        return Graph.from_edges(pairs[0], pairs[1], rows, rows)  # kept ends save a sort
    return _pairs(conv.negative_sampling(edges.rewritten(), rows, batch), rows)


def _prepare_loss(conv: Any, x: Tensor, sampled: Graph, others: Graph) -> None:
    """Set what ``get_attention_loss`` reads: logits of sampled edges and of others, and labels."""
    x = x.to(message_dtype(x.device, x))
    conv.att_x = pair_logits((sampled, others), x, scaled=conv.attention_type == "SD")
    conv.att_y = conv.att_x.new_zeros(conv.att_x.shape[0])
    conv.att_y[: sampled.num_edges] = 1.0


def _given_pairs(ends: Tensor, rows: int) -> Graph:
    """The caller's pairs of nodes as a graph, kept with them.

    What does not fit, such as numbers of nodes counted from the end, is left to the stock layer.
    """
    try:
        return graph_of(ends, Variant(rows, rows, False))
    except InvalidArgument as error:
        raise Unsupported("input-form", f"neg_edge_index: {error}") from error


def _pairs(ends: Tensor, rows: int) -> Graph:
    """Sampled pairs of nodes as a graph of their own."""
    return Graph.from_edge_index(ends, rows, rows)

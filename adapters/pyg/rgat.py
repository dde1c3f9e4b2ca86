"""PyG's ``RGATConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gnn_backend.adapters.pyg.aggregating import call_reason, layer_reason
from gnn_backend.adapters.pyg.attention import (
    as_columns,
    edge_wise_reason,
    settings_reason,
)
from gnn_backend.adapters.pyg.edges import num_edges
from gnn_backend.adapters.pyg.message_passing import origins
from gnn_backend.adapters.pyg.typed import by_blocks, typed_graph, types_reason, weight_of
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.layers.relational.forms import Attended, Attention, attention

_METHODS = origins("torch_geometric.nn.conv.rgat_conv", "RGATConv", "message", "update")


def eligible(
    conv: Any, x: Any, edge_index: Any, edge_type: Any = None, edge_attr: Any = None,
    size: Any = None, return_attention_weights: Any = None,
) -> str | None:  # fmt: skip
    """Reason code why this call of ``RGATConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The arguments are something that the stock layer rejects with its own error.
    """
    reason = static_reason(conv) or call_reason(conv, x, edge_index, size=size, pairs=False)
    if reason is not None:
        return reason
    if x.dtype is not conv.q.dtype:
        return "dtype-mixed"
    if edge_attr is not None and (conv.lin_edge is None or edge_attr.dtype is not x.dtype):
        return "edge-features"
    returns = isinstance(return_attention_weights, bool)
    reason = types_reason(edge_type, edge_index, x.device)
    return reason or edge_wise_reason(edge_index, edge_attr, returns, x.device)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return layer_reason(conv, _METHODS, node_dim=0) or settings_reason(conv)


def edgewise_bytes(
    conv: Any, x: Any, edge_index: Any, edge_type: Any = None, edge_attr: Any = None,
    size: Any = None, return_attention_weights: Any = None,
) -> int:  # fmt: skip
    """Bytes of edge-wise tensors that the stock forward holds at its peak.

    A weight for each edge, its sources' and destinations' rows, both mapped, and the messages.
    """
    width = conv.heads * conv.out_channels
    numbers = conv.in_channels * width + 2 * conv.in_channels + (2 + conv.dim) * width
    return int(num_edges(edge_index) * numbers * x.element_size())


def fast(
    conv: Any, x: Tensor, edge_index: Any, edge_type: Tensor | None = None,
    edge_attr: Tensor | None = None, size: Any = None, return_attention_weights: Any = None,
) -> Any:  # fmt: skip
    """Fused ``RGATConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.RGATConv
    x : Tensor [N, F]
    edge_index : Tensor [2, E] or EdgeIndex
    edge_type : integer Tensor [E]
    edge_attr : Tensor [E] or [E, F], optional
    size : (int, int), optional
    return_attention_weights : bool, optional

    Returns
    -------
    Tensor [N, H * dim * D], or of averaged heads [N, dim * D]
        With a bool for ``return_attention_weights`` a pair of it and (edge_index, [E, H * dim]).

    Raises
    ------
    InvalidArgument
        The edges do not fit the features, or a type is out of range.
    """
    assert edge_type is not None
    relations = typed_graph(conv, x, edge_index, edge_type, size)
    weight = _weight(conv)
    returns = isinstance(return_attention_weights, bool)
    tensors = {"x": by_blocks(x, weight), "weight": weight, "query": conv.q, "key": conv.k}
    if edge_attr is not None:
        tensors["term"] = conv.lin_edge(as_columns(edge_attr)) @ conv.e
    dropout = conv.training and conv.dropout > 0 and conv.mod is None
    if dropout:  # the numbers that stock draws, from the same state of the generator
        kept = x.new_ones(num_edges(edge_index), conv.heads * conv.dim)
        tensors["kept"] = functional.dropout(kept, conv.dropout)
    form = Attention(
        heads=conv.heads,
        dim=conv.dim,
        slope=float(conv.negative_slope),
        additive=conv.attention_mode == "additive-self-attention",
        within=conv.attention_mechanism == "within-relation",
        term=edge_attr is not None,
        kept=dropout,
        raised=conv.mod == "f-additive",
        plain=conv.mod == "additive",
        returns=returns,
    )
    found = attention(form)(relations, **tensors)
    out = _modified(conv, relations, found)
    out = out.flatten(1) if conv.concat else out.mean(dim=1).flatten(1)
    out = out if conv.bias is None else out + conv.bias
    return (out, (edge_index, found.weights)) if returns else out


def _weight(conv: Any) -> Tensor:
    """A weight for each relation, or blocks of it."""
    if conv.num_bases is not None:
        return weight_of(conv, conv.basis, conv.att)
    return weight_of(conv, conv.weight, None)


def _modified(conv: Any, relations: Relations, found: Attended) -> Tensor:
    """Messages [N, H, dim, D], with what keeps the cardinality of neighbourhoods."""
    out = torch.stack(found.messages, dim=2)
    if found.plain is not None:
        return out + conv.w * found.plain.unsqueeze(2)
    if conv.mod not in ("scaled", "f-scaled"):
        return out
    degree = relations.degree(Domain.DST).to(out.dtype).unsqueeze(-1)
    if conv.mod == "f-scaled":
        return out * degree.view(-1, 1, 1, 1)
    scale = conv.activation(degree @ conv.l1 + conv.b1) @ conv.l2 + conv.b2
    return out * scale.view(len(out), 1, 1, -1)

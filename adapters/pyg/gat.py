"""PyG's ``GATConv`` and ``FusedGATConv``: which calls run fused, and the fused forwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.attention import (
    as_columns,
    dropout_of,
    edge_reason,
    edge_wise_reason,
    feature_reason,
    given_features,
    heads_of,
    message_dtype,
    own,
    plain_weight,
    projections,
    rewritten,
    settings_reason,
    sizes_of,
    sums_plainly,
)
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list, num_edges
from gnn_backend.adapters.pyg.message_passing import changed_reason, origins
from gnn_backend.graph import Graph
from gnn_backend.layers.edge_projection import edge_logits
from gnn_backend.layers.gat import gat, projected_gat

_METHODS = origins("torch_geometric.nn.conv.gat_conv", "GATConv", "message", "edge_update")


def eligible(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    size: Any = None,
    return_attention_weights: Any = None,
) -> str | None:
    """Reason code why this call of ``GATConv.forward`` has no fused path, or None.

    Raises
    ------
    InvalidArgument
        The edges are something that the stock layer rejects with its own error.
    """
    att = own(conv, "att_src")
    device = att.device
    reason = static_reason(conv) or feature_reason(given_features(x), device, att.dtype)
    if reason is not None:
        return reason
    if torch.compiler.is_compiling():
        return "compiled"
    sizes = sizes_of(x, size)
    if sizes is None:
        return "input-form"
    square = sizes[0] == sizes[1]
    reason = edge_reason(conv, edge_index, device, self_loops=conv.add_self_loops, square=square)
    if reason is not None:
        return reason
    if conv.add_self_loops and not is_edge_list(edge_index):
        if conv.edge_dim is not None:
            return "edge-features"
        if not isinstance(conv.fill_value, (str, float, int)):
            return "fill-value"
    if conv.lin_edge is None and not conv.add_self_loops:
        edge_attr = None  # which stock does not look at either
    return edge_wise_reason(edge_index, edge_attr, bool(return_attention_weights), device)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    shape = (1, conv.heads, conv.out_channels)
    for name in ("att_src", "att_dst", "att_edge"):
        att = own(conv, name)
        if att is not None and att.shape != shape:
            return "parametrized"
    return settings_reason(conv) or changed_reason(conv, _METHODS)


def edgewise_bytes(
    conv: Any,
    x: Any,
    edge_index: Any,
    edge_attr: Any = None,
    size: Any = None,
    return_attention_weights: Any = None,
) -> int:
    """Bytes of [E, H, C] tensors that the stock forward holds at its peak.

    Two of them: the gathered sources and the messages; with edge features two more, the
    projected features and their product with the attention vector.
    """
    att = own(conv, "att_src")
    held = 4 if edge_attr is not None and conv.lin_edge is not None else 2
    return held * num_edges(edge_index) * att.numel() * att.element_size()


def fast(
    conv: Any,
    x: Tensor | tuple[Tensor, Tensor | None],
    edge_index: Any,
    edge_attr: Tensor | None = None,
    size: tuple[int, int] | None = None,
    return_attention_weights: bool | None = None,
) -> Any:
    """Fused ``GATConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : torch_geometric.nn.GATConv
    x : Tensor [N, F] or pair of Tensor [num_src, F_src], [num_dst, F_dst] or None
    edge_index : Tensor [2, E], EdgeIndex, sparse COO or CSR Tensor, or SparseTensor
    edge_attr : Tensor [E, F_edge] or [E], optional
    size : (num_src, num_dst), optional
    return_attention_weights : bool, optional

    Returns
    -------
    Tensor [N, H * C] (``concat``) or [N, C]
        With the weights, if asked for, a tuple of it and (edge_index, [E, H]).

    Raises
    ------
    InvalidArgument
        The edges do not fit the features; the stock layer has its own error for it.
    Unsupported
        The operator has no kernel for these operands.
    """
    sizes = sizes_of(x, size)
    assert sizes is not None
    fills = conv.add_self_loops and not is_edge_list(edge_index)
    fill_value = conv.fill_value if fills else None
    reverse = conv.flow == "target_to_source"
    variant = Variant(*sizes, bool(conv.add_self_loops), reverse, fill_value)
    graph = graph_of(edge_index, variant)
    att_src, att_dst = own(conv, "att_src"), own(conv, "att_dst")
    options: dict[str, Any] = {
        "negative_slope": float(conv.negative_slope),
        "dropout_p": dropout_of(conv),
        "heads": heads_of(conv),
        "bias": own(conv, "bias"),
    }
    residual = _residual(conv, x)
    uses_edges = edge_attr is not None and conv.lin_edge is not None
    if not uses_edges and not return_attention_weights:
        found = _projected(conv, graph, x, att_src, att_dst, residual, options)
        if found is not None:
            return found
    x_src, x_dst = _project(conv, x)
    edge_logit = None
    if uses_edges or return_attention_weights:
        features = edge_attr if uses_edges else None
        edge_index, features = rewritten(edge_index, features, variant, conv.fill_value)
        if features is not None:
            edge_logit = _edge_logit(conv, as_columns(features))
    mixed = [t for t in (x_src, x_dst, att_src, att_dst, edge_logit) if t is not None]
    dtype = message_dtype(att_src.device, *mixed)
    found = gat(
        graph, x_src.to(dtype), None if x_dst is None else x_dst.to(dtype), att_src, att_dst,
        edge_logit=edge_logit, residual=residual, return_attention=bool(return_attention_weights),
        **options,
    )  # fmt: skip
    return (found[0], (edge_index, found[1])) if return_attention_weights else found


def _projected(
    conv: Any,
    graph: Graph,
    x: Any,
    att_src: Tensor,
    att_dst: Tensor,
    residual: Tensor | None,
    options: dict[str, Any],
) -> Tensor | None:
    """The layer as one autograd node, or None where its parts must be called one by one."""
    h_src, h_dst = (x, None) if isinstance(x, Tensor) else x
    if h_dst is None and not isinstance(x, Tensor):
        return None
    if att_dst.dtype is not att_src.dtype or not sums_plainly(
        att_src, graph.num_dst, heads=options["heads"], residual=residual, bias=options["bias"]
    ):
        return None
    to_src, to_dst = _linears(conv)
    shared = h_dst is None and to_dst is to_src
    found = projections((to_src, None if shared else to_dst), (h_src, h_dst), att_src)
    if found is None:
        return None
    src, dst = found
    return projected_gat(
        graph, h_src, src, att_src, att_dst, h_dst=h_dst, dst=dst, residual=residual, **options
    )


def _linears(conv: Any) -> tuple[Any, Any]:
    """Modules that project sources and destinations."""
    return (conv.lin_src, conv.lin_dst) if conv.lin is None else (conv.lin, conv.lin)


def _residual(conv: Any, x: Any) -> Tensor | None:
    """Of the destinations; before the projections, as lazy layers initialise in that order."""
    h_dst = x if isinstance(x, Tensor) else x[1]
    return None if conv.res is None or h_dst is None else conv.res(h_dst)


def _project(conv: Any, x: Any) -> tuple[Tensor, Tensor | None]:
    """Projected sources and destinations [N, H, C], called in the stock order."""
    shape = (-1, conv.heads, conv.out_channels)
    h_src, h_dst = (x, x) if isinstance(x, Tensor) else x
    to_src, to_dst = _linears(conv)
    x_src = to_src(h_src).view(shape)
    if to_dst is to_src and h_dst is h_src:
        return x_src, x_src
    return x_src, None if h_dst is None else to_dst(h_dst).view(shape)


def _edge_logit(conv: Any, features: Any) -> Tensor:
    """Share of the edge features in the logits [E, H]."""
    att = own(conv, "att_edge")
    weight = plain_weight(conv.lin_edge, features, att.numel())
    if weight is not None:
        return edge_logits(features, weight, att)
    projected = conv.lin_edge(features).view(-1, conv.heads, conv.out_channels)
    return (projected * att).sum(-1)  # type: ignore[no-any-return]

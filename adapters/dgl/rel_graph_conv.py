"""DGL's ``RelGraphConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import call_reason, graph_only, source_of
from gnn_backend.adapters.dgl.typed import TYPED_LINEAR, is_plain, is_types, weight_of
from gnn_backend.graph.relations import relations_of
from gnn_backend.layers.relational.rgcn import rgcn


def eligible(
    conv: Any, graph: Any, feat: Any, etypes: Any, norm: Any = None, *, presorted: bool = False
) -> str | None:
    """Reason code why this call of ``RelGraphConv.forward`` has no fused path, or None."""
    reason = static_reason(conv)
    if reason is not None:
        return reason
    x = source_of(graph, feat)
    if x is not feat or x.dim() != 2:
        return "input-form"
    edges = graph.num_edges()
    if not is_types(etypes, edges, x.device):
        return "input-form"
    if norm is not None and (not isinstance(norm, Tensor) or norm.shape != (edges, 1)):
        return "input-form"
    parameters = [*conv.linear_r.parameters(), getattr(conv, "loop_weight", None)]
    features = (x,) if norm is None else (x, norm)
    return call_reason(graph, features, (*parameters, getattr(conv, "h_bias", None)))


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    return None if is_plain(conv.linear_r, TYPED_LINEAR) else "parametrized"


def edgewise_bytes(
    conv: Any, graph: Any, feat: Any, etypes: Any, norm: Any = None, *, presorted: bool = False
) -> int:
    """Bytes of [E, F] tensors that the stock forward holds at its peak.

    The sources' rows at the edges, their products and, with a norm, the messages.
    """
    linear = conv.linear_r
    columns = linear.in_size + (1 if norm is None else 2) * linear.out_size
    return int(graph.num_edges() * columns * feat.element_size())


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor,
    etypes: Tensor,
    norm: Tensor | None = None,
    *,
    presorted: bool = False,
) -> Tensor:
    """Fused ``RelGraphConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.RelGraphConv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    feat : Tensor [num_src, F]
    etypes : integer Tensor [E]
    norm : Tensor [E, 1], optional
    presorted : bool
        Not needed: whether edges are sorted by their types is found out once.

    Returns
    -------
    Tensor [num_dst, D]

    Raises
    ------
    InvalidArgument
        A type is out of range; stock has its own error.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    linear = conv.linear_r
    relations = relations_of(graph_only(graph), etypes, linear.num_types)
    weight = weight_of(linear)
    x = feat.view(len(feat), *weight.shape[1:-1])  # of a block-diagonal weight, by blocks
    factors = {} if norm is None else {"norm": norm.view(-1)}
    h = rgcn(relations, x=x, weight=weight, **factors)
    assert isinstance(h, Tensor)
    h = h.reshape(graph.num_dst_nodes(), linear.out_size)
    if conv.layer_norm:
        h = conv.layer_norm_weight(h)
    if conv.bias:
        h = h + conv.h_bias
    if conv.self_loop:
        h = h + feat[: graph.num_dst_nodes()] @ conv.loop_weight
    if conv.activation:
        h = conv.activation(h)
    return conv.dropout(h)  # type: ignore[no-any-return]

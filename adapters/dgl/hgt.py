"""DGL's ``HGTConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

import torch
from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl.aggregating import call_reason, graph_only, source_of
from gnn_backend.adapters.dgl.typed import TYPED_LINEAR, is_plain, is_types
from gnn_backend.graph.relations import relations_of
from gnn_backend.layers.relational.forms import by_node_type
from gnn_backend.layers.relational.hgt import hgt


def eligible(
    conv: Any, graph: Any, x: Any, ntype: Any, etype: Any, *, presorted: bool = False
) -> str | None:
    """Reason code why this call of ``HGTConv.forward`` has no fused path, or None."""
    reason = static_reason(conv)
    if reason is not None:
        return reason
    rows = source_of(graph, x)
    if rows is not x or rows.dim() != 2:
        return "input-form"
    if not graph.is_block and graph.num_src_nodes() != graph.num_dst_nodes():
        return "graph-type"
    if not is_types(ntype, len(rows), rows.device):
        return "input-form"
    if not is_types(etype, graph.num_edges(), rows.device):
        return "input-form"
    return call_reason(graph, (rows,), conv.parameters())


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    typed = (conv.linear_k, conv.linear_q, conv.linear_v, conv.linear_a,
             *conv.relation_att, *conv.relation_msg)  # fmt: skip
    plain = all(is_plain(linear, TYPED_LINEAR) and linear.regularizer is None for linear in typed)
    return None if plain else "parametrized"


def edgewise_bytes(
    conv: Any, graph: Any, x: Any, ntype: Any, etype: Any, *, presorted: bool = False
) -> int:
    """Bytes of [E, H, D] tensors that the stock forward holds at its peak.

    Keys, queries, values, the mapped keys and the messages.
    """
    return int(5 * graph.num_edges() * conv.num_heads * conv.head_size * x.element_size())


def fast(
    conv: Any, graph: DGLGraph, x: Tensor, ntype: Tensor, etype: Tensor, *, presorted: bool = False
) -> Tensor:
    """Fused ``HGTConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    conv : dgl.nn.pytorch.HGTConv
    graph : DGLGraph
        One relation; of a block, the destinations are the first rows of the sources.
    x : Tensor [num_src, F]
    ntype : integer Tensor [num_src]
    etype : integer Tensor [E]
    presorted : bool
        Not needed: whether rows are sorted by their types is found out once.

    Returns
    -------
    Tensor [num_dst, H * D]

    Raises
    ------
    InvalidArgument
        A type is out of range; stock has its own error.
    Unsupported
        No kernel takes these operands, or the graph's formats are restricted.
    """
    blocks = graph.is_block
    x_dst = x[: graph.num_dst_nodes()] if blocks else x
    relations = relations_of(
        graph_only(graph), etype, conv.relation_pri[0].numel(), ntype,
        ntype[: len(x_dst)] if blocks else ntype, conv.skip.numel(),
    )  # fmt: skip
    h = hgt(
        relations,
        x=x,
        query=conv.linear_q.W,
        key=conv.linear_k.W,
        value=conv.linear_v.W,
        att=torch.stack([linear.W for linear in conv.relation_att], dim=1),
        message=torch.stack([linear.W for linear in conv.relation_msg], dim=1),
        prior=torch.stack(list(conv.relation_pri), dim=1),
        num_heads=conv.num_heads,
        **({"x_dst": x_dst} if blocks else {}),
    )
    h = by_node_type(relations, x=h, weight=conv.linear_a.W)
    assert isinstance(h, Tensor)
    h = conv.drop(h)
    alpha = torch.sigmoid(conv.skip[ntype[: len(x_dst)]]).unsqueeze(-1)
    own = x_dst if x_dst.shape == h.shape else x_dst @ conv.residual_w
    h = h * alpha + own * (1 - alpha)
    return conv.norm(h) if conv.use_norm else h  # type: ignore[no-any-return]

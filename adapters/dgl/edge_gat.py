"""DGL's ``EdgeGATConv``: which calls run fused, and the fused forward."""

from __future__ import annotations

from typing import Any

from dgl import DGLGraph
from torch import Tensor

from gnn_backend.adapters.dgl import gat
from gnn_backend.adapters.dgl.attention import feature_reason, graph_reason, plain_weight
from gnn_backend.errors import invalid
from gnn_backend.layers.edge_projection import edge_logits
from gnn_backend.ops.attention_checks import MAX_WIDTH


def eligible(
    conv: Any, graph: Any, feat: Any, edge_feat: Any, get_attention: bool = False
) -> str | None:
    """Reason code why this call of ``EdgeGATConv.forward`` has no fused path, or None."""
    reason = static_reason(conv) or feature_reason(feat, conv.attn_l, flat=True)
    reason = reason or feature_reason(edge_feat, conv.attn_l, flat=True)
    if reason is None and edge_feat.shape[1] > MAX_WIDTH:  # before dropout draws
        return "edge-dim"
    return reason or graph_reason(graph, conv.attn_l.device)


def static_reason(conv: Any) -> str | None:
    """The part of :func:`eligible` that the layer alone decides."""
    if conv.attn_edge.shape != (1, conv._num_heads, conv._out_feats):
        return "parametrized"
    return gat.static_reason(conv)


def edgewise_bytes(
    conv: Any, graph: Any, feat: Any, edge_feat: Any, get_attention: bool = False
) -> int:
    """Bytes of [E, H, D] tensors that the stock forward holds at its peak.

    Four of them: projected edge features, their product with the attention vector, their sum
    with the sources, and the messages.
    """
    att = conv.attn_l
    return 4 * graph.num_edges() * att.numel() * att.element_size()


def fast(
    conv: Any,
    graph: DGLGraph,
    feat: Tensor | tuple[Tensor, Tensor],
    edge_feat: Tensor,
    get_attention: bool = False,
) -> Any:
    """Fused ``EdgeGATConv.forward`` for a call that :func:`eligible` accepts.

    Parameters
    ----------
    edge_feat : Tensor [E, F_edge]

    The other parameters, the result and the errors are those of :func:`.gat.fast`.
    """
    if edge_feat.shape[0] != graph.num_edges():
        raise invalid("edge_feat", "wrong number of rows", edge_feat.shape[0], graph.num_edges())
    return gat.attend(conv, graph, feat, _edge_options(conv, edge_feat), get_attention)


def _edge_options(conv: Any, edge_feat: Tensor) -> dict[str, Any]:
    """Edge features as :func:`gnn_backend.layers.gat.gat` takes them."""
    att = conv.attn_edge
    weight = plain_weight(conv.fc_edge, edge_feat, att.numel())
    if weight is not None:
        logit = edge_logits(edge_feat, weight, att)
        return {"edge_logit": logit, "edge_features": edge_feat, "edge_weight": weight}
    projected = conv.fc_edge(edge_feat).view(-1, conv._num_heads, conv._out_feats)
    return {"edge_logit": (projected * att).sum(-1), "edge_features": projected}

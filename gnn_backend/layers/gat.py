"""GAT: attend, with or without edge features, then combine the heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.layers.combination import combine
from gnn_backend.layers.edge_projection import project_sums
from gnn_backend.ops.attention import gat_attention
from gnn_backend.ops.attention_forms import FORMS, scores
from gnn_backend.ops.heads import Heads
from gnn_backend.ops.projected_attention import Projection, projected_attention


def gat(
    graph: Graph,
    x_src: Tensor,
    x_dst: Tensor | None,
    att_src: Tensor,
    att_dst: Tensor,
    *,
    negative_slope: float = 0.2,
    edge_logit: Tensor | None = None,
    edge_features: Tensor | None = None,
    edge_weight: Tensor | None = None,
    dropout_p: float = 0.0,
    heads: Heads = "keep",
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    return_attention: bool = False,
) -> Any:
    """Apply graph attention (GAT) to projected node features.

    For every destination ``i`` and head ``h``, over the in-edges ``e = (j -> i)``::

        logit_e = leaky_relu(<att_src[h], x_src[j, h]> + <att_dst[h], x_dst[i, h]> + edge_logit[e])
        out[i, h] = sum_e softmax_i(logit)_e * (x_src[j, h] + edge_weight[h] @ edge_features[e])

    Parameters
    ----------
    graph : Graph
    x_src : Tensor [num_src, H, D]
    x_dst : Tensor [num_dst, H, D] or None
        Projected features, of one floating dtype; without those of the destinations, which are
        the same for all edges of a row but for the leaky-relu, their share is 0.
    att_src, att_dst : Tensor [H, D] or [1, H, D]
    negative_slope : float
    edge_logit : Tensor [E, H], optional
        In the caller's edge order; see :func:`gnn_backend.layers.edge_projection.edge_logits`.
    edge_features, edge_weight : Tensor [E, F] and [H * D, F], optional
        Features that are added to the messages once projected, and their projection; features
        [E, H, D] without it are projected already.
    dropout_p : float
        Probability that a weight is dropped.
    heads : {"keep", "concat", "mean"}
        Shape of the result: [num_dst, H, D], [num_dst, H * D] or [num_dst, D].
    residual, bias : Tensor, optional
        Added in this order after the heads were combined; broadcast to the result.
    return_attention : bool
        Return the weights [E, H] after dropout as well, as the second of a tuple.

    Raises
    ------
    InvalidArgument
        Shapes or devices that do not fit the graph.
    Unsupported
        No fused kernel takes these operands; the exception carries the reason code.
    """
    el = scores(x_src, att_src)
    er = el.new_zeros(graph.num_dst, el.shape[1]) if x_dst is None else scores(x_dst, att_dst)
    if edge_logit is not None:
        edge_logit = edge_logit.to(x_src.dtype)
    found = gat_attention(
        graph, x_src, el.to(x_src.dtype), er.to(x_src.dtype), negative_slope=negative_slope,
        edge_logit=edge_logit, edge_features=edge_features, dropout_p=dropout_p,
        return_attention=return_attention,
    )  # fmt: skip
    out, *further = found if isinstance(found, tuple) else (found,)
    if edge_features is not None:
        sums = further.pop(0)
        out = out + (sums if edge_weight is None else project_sums(sums, edge_weight))
    out = combine(out, heads=heads, residual=residual, bias=bias)
    return (out, *further) if return_attention else out


def projected_gat(
    graph: Graph,
    h_src: Tensor,
    src: Projection,
    att_src: Tensor,
    att_dst: Tensor,
    *,
    h_dst: Tensor | None = None,
    dst: Projection | None = None,
    negative_slope: float = 0.2,
    dropout_p: float = 0.0,
    heads: Heads = "keep",
    residual: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """:func:`gat` of features that are still to be projected, as one autograd node.

    Parameters
    ----------
    graph : Graph
    h_src : Tensor [num_src, F]
    src : Projection
        Weight [H * D, F] and bias [H * D] or None.
    att_src, att_dst : Tensor [H, D] or [1, H, D]
    h_dst : Tensor [num_dst, F_dst], optional
        By default the first ``num_dst`` rows of ``h_src``.
    dst : Projection, optional
        By default that of the sources, applied once.
    negative_slope, dropout_p, heads
        As in :func:`gat`.
    residual : Tensor in the shape of the result, optional
    bias : Tensor [columns of the result], optional

    Returns
    -------
    Tensor
        In the dtype that all tensors must have in common.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices that do not fit each other or the graph.
    Unsupported
        No fused kernel takes these operands; the exception carries the reason code.
    """
    return projected_attention(
        FORMS["gat"], graph, h_src, src, (att_src, att_dst), {"negative_slope": negative_slope},
        num_heads=att_src.shape[-2], h_dst=h_dst, dst=dst, heads=heads, residual=residual,
        bias=bias, dropout_p=dropout_p,
    )  # fmt: skip

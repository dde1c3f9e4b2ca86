"""SuperGAT: graph attention that also predicts edges (Kim and Oh, 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.layers.combination import combine
from gnn_backend.ops.attention import gat_attention
from gnn_backend.ops.edge_dot import edge_dot
from gnn_backend.ops.heads import Heads


def supergat(
    graph: Graph,
    x: Tensor,
    att_src: Tensor | None,
    att_dst: Tensor | None,
    *,
    negative_slope: float = 0.2,
    dropout_p: float = 0.0,
    heads: Heads = "keep",
    bias: Tensor | None = None,
) -> Tensor:
    """Apply SuperGAT to projected node features.

    For every destination ``i`` and head ``h``, over the in-edges ``j -> i``, with
    ``p = <x[i, h], x[j, h]>``::

        score = (<att_src[h], x[j, h]> + <att_dst[h], x[i, h]>) * sigmoid(p)      "MX"
        score = p / sqrt(D)                                    "SD", without att_src, att_dst
        out[i, h] = sum_j softmax_j(leaky_relu(score)) * x[j, h]

    Scores [E, H] are written, and nothing wider.

    Parameters
    ----------
    graph : Graph
        As many sources as destinations.
    x : Tensor [N, H, D]
    att_src, att_dst : Tensor [H, D] or [1, H, D] or None
    negative_slope : float
    dropout_p : float
        Probability that a weight is dropped.
    heads : {"keep", "concat", "mean"}
        Shape of the result: [N, H, D], [N, H * D] or [N, D].
    bias : Tensor, optional

    Raises
    ------
    InvalidArgument
        Shapes or devices that do not fit the graph.
    Unsupported
        No fused kernel takes these operands; the exception carries the reason code.
    """
    score = edge_dot(graph, x, x)
    if att_src is None or att_dst is None:
        score = score * x.shape[2] ** -0.5
    else:
        el, er = (x * att_src).sum(-1), (x * att_dst).sum(-1)
        one = torch.ones_like(el)
        sums = edge_dot(graph, torch.stack([el, one], -1), torch.stack([one, er], -1))
        score = sums * score.sigmoid()
    none = x.new_zeros(x.shape[:2])
    out = gat_attention(
        graph, x, none, none, negative_slope=negative_slope, edge_logit=score.to(x.dtype),
        dropout_p=dropout_p,
    )  # fmt: skip
    return combine(out, heads=heads, bias=bias)

"""GATv2: project, attend, combine the heads, add the residual and the bias."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.layers.combination import combine
from gnn_backend.ops.attention import gatv2_attention
from gnn_backend.ops.attention_forms import FORMS
from gnn_backend.ops.heads import Heads
from gnn_backend.ops.projected_attention import Projection, projected_attention


def gatv2(
    graph: Graph,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    *,
    negative_slope: float = 0.2,
    edge: Tensor | None = None,
    dropout_p: float = 0.0,
    heads: Heads = "keep",
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    return_attention: bool = False,
) -> Any:
    """Apply graph attention (GATv2) to projected node features.

    For every destination ``i`` and head ``h``, over the in-edges ``e = (j -> i)``::

        logit_e = sum_d att[h, d] * leaky_relu(x_src[j, h, d] + x_dst[i, h, d] + edge[e, h, d])
        out[i, h] = sum_e softmax_i(logit)_e * x_src[j, h]

    Parameters
    ----------
    graph : Graph
    x_src : Tensor [num_src, H, D]
    x_dst : Tensor [num_dst, H, D]
        Projected source and destination features, of one floating dtype.
    att : Tensor [H, D]
    negative_slope : float
    edge : Tensor [E, H, D], optional
        Projected edge features in the caller's order.
    dropout_p : float
        Probability that a weight is dropped.
    heads : {"keep", "concat", "mean"}
        Shape of the result: [num_dst, H, D], [num_dst, H * D] or [num_dst, D].
    residual, bias : Tensor, optional
        Added in this order after the heads were combined; broadcast to the result.
    return_attention : bool
        Return the weights [E, H] after dropout as well, as the second of a tuple.

    Returns
    -------
    Tensor
        In the operands' dtype, promoted with those of ``residual`` and ``bias``.

    Raises
    ------
    InvalidArgument
        Shapes or devices that do not fit the graph.
    Unsupported
        No fused kernel takes these operands; the exception carries the reason code.
    """
    found = gatv2_attention(
        graph, x_src, x_dst, att, negative_slope=negative_slope, edge=edge, dropout_p=dropout_p,
        return_attention=return_attention,
    )  # fmt: skip
    out, *further = found if return_attention else (found,)
    out = combine(out, heads=heads, residual=residual, bias=bias)
    return (out, *further) if return_attention else out


def projected_gatv2(
    graph: Graph,
    h_src: Tensor,
    src: Projection,
    att: Tensor,
    *,
    h_dst: Tensor | None = None,
    dst: Projection | None = None,
    negative_slope: float = 0.2,
    dropout_p: float = 0.0,
    heads: Heads = "keep",
    residual: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """:func:`gatv2` of features that are still to be projected, as one autograd node.

    Parameters
    ----------
    graph : Graph
    h_src : Tensor [num_src, F]
    src : Projection
        Weight [H * D, F] and bias [H * D] or None.
    att : Tensor [H, D] or [1, H, D]
    h_dst : Tensor [num_dst, F_dst], optional
        By default the first ``num_dst`` rows of ``h_src``.
    dst : Projection, optional
        By default that of the sources, applied once.
    negative_slope, dropout_p, heads
        As in :func:`gatv2`.
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
        FORMS["gatv2"],
        graph,
        h_src,
        src,
        (att,),
        {"negative_slope": negative_slope},
        num_heads=att.shape[-2],
        h_dst=h_dst,
        dst=dst,
        heads=heads,
        residual=residual,
        bias=bias,
        dropout_p=dropout_p,
    )

"""GATv2: project, attend, combine the heads, add the residual and the bias."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.attention import gatv2_attention
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.ops.heads import Heads, merge_heads
from gnn_backend.ops.projected_attention import Projection, projected_attention


def gatv2(
    graph: Graph,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    *,
    negative_slope: float = 0.2,
    heads: Heads = "keep",
    residual: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Apply graph attention (GATv2) to projected node features.

    For every destination ``i`` and head ``h``, over the in-edges ``j -> i``::

        logit_ij = sum_d att[h, d] * leaky_relu(x_src[j, h, d] + x_dst[i, h, d])
        out[i, h] = sum_j softmax_j(logit_ij) * x_src[j, h]

    Parameters
    ----------
    graph : Graph
    x_src : Tensor [num_src, H, D]
    x_dst : Tensor [num_dst, H, D]
        Projected source and destination features, of one floating dtype.
    att : Tensor [H, D]
    negative_slope : float
    heads : {"keep", "concat", "mean"}
        Shape of the result: [num_dst, H, D], [num_dst, H * D] or [num_dst, D].
    residual, bias : Tensor, optional
        Added in this order after the heads were combined; broadcast to the result.

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
    out = gatv2_attention(graph, x_src, x_dst, att, negative_slope=negative_slope)
    return combine(out, heads=heads, residual=residual, bias=bias)


def projected_gatv2(
    graph: Graph,
    h_src: Tensor,
    src: Projection,
    att: Tensor,
    *,
    h_dst: Tensor | None = None,
    dst: Projection | None = None,
    negative_slope: float = 0.2,
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
    negative_slope, heads
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
        FUNCTORS["gatv2"],
        graph,
        h_src,
        src,
        att,
        {"negative_slope": negative_slope},
        h_dst=h_dst,
        dst=dst,
        heads=heads,
        residual=residual,
        bias=bias,
    )


def combine(
    out: Tensor, *, heads: Heads, residual: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Turn attention's [N, H, D] into the layer's result; parameters as in :func:`gatv2`."""
    untouched = heads != "mean" and residual is None and bias is None
    out = merge_heads(out, heads)
    if residual is not None:
        out = out + residual
    if bias is not None:
        out = out + bias
    if untouched and out.requires_grad:
        # Backward reads what attention returned, and callers may change a layer's result in place.
        out = out.clone()
    return out

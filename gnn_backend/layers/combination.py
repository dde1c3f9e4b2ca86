"""What follows attention in a layer: combining the heads, the residual, the bias."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.ops.heads import Heads, merge_heads


def combine(
    out: Tensor, *, heads: Heads, residual: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Turn attention's [N, H, D] into the layer's result.

    Parameters
    ----------
    out : Tensor [N, H, D]
    heads : {"keep", "concat", "mean"}
        Shape of the result: [N, H, D], [N, H * D] or [N, D].
    residual, bias : Tensor, optional
        Added in this order after the heads were combined; broadcast to the result.
    """
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

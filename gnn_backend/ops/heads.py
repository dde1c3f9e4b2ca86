"""Combining the heads of an attention output, and the way back for its gradient."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Heads = Literal["keep", "concat", "mean"]


def merge_heads(out: Tensor, heads: Heads) -> Tensor:
    """Turn [N, H, D] into [N, H, D], [N, H * D] or [N, D]; a view but for the mean."""
    if heads == "concat":
        return out.flatten(1)
    return out.mean(dim=1) if heads == "mean" else out


def unmerge_gradient(grad: Tensor, heads: Heads, num_heads: int) -> Tensor:
    """Gradient [N, H, D] from that of what :func:`merge_heads` returned."""
    if heads == "concat":
        return grad.view(grad.shape[0], num_heads, grad.shape[1] // num_heads)
    if heads == "mean":
        return (grad / num_heads).unsqueeze(1).expand(-1, num_heads, -1)
    return grad

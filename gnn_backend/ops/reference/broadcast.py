"""The binary step of a message: trailing shapes aligned as DGL aligns them."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.errors import invalid

BINARY = ("add", "sub", "mul", "div", "dot")


def binary(op: str, lhs: Tensor | None, rhs: Tensor | None) -> Tensor:
    """Combine two tensors of one row an edge.

    Trailing shapes are aligned from the right, after a shape of no dimension became (1,).

    Parameters
    ----------
    op : {"add", "sub", "mul", "div", "dot", "copy_lhs", "copy_rhs"}
        ``dot`` sums the last dimension and keeps it.
    lhs, rhs : Tensor [E, *] or None
        The one that the operation does not use may be None.

    Returns
    -------
    Tensor [E, *]

    Raises
    ------
    InvalidArgument
        An unknown operation, or shapes that cannot be aligned.
    """
    if op == "copy_lhs" and lhs is not None:
        return lhs
    if op == "copy_rhs" and rhs is not None:
        return rhs
    if op not in BINARY or lhs is None or rhs is None:
        raise invalid("op", "unknown, or without its operands", repr(op), f"one of {BINARY}")
    scalar = lhs.dim() == 1 and rhs.dim() == 1
    lhs, rhs = _padded(lhs, rhs)
    try:
        torch.broadcast_shapes(lhs.shape[1:], rhs.shape[1:])
    except RuntimeError:
        got = f"{tuple(lhs.shape[1:])} and {tuple(rhs.shape[1:])}"
        raise invalid("operands", "shapes do not fit", got, "shapes that broadcast") from None
    if op == "dot":
        if lhs.shape[-1] != rhs.shape[-1]:
            got = f"{lhs.shape[-1]} and {rhs.shape[-1]}"
            raise invalid("operands", "last dimensions differ", got, "one size for dot")
        out = (lhs * rhs).sum(-1, keepdim=True)
    else:
        out = getattr(torch, op)(lhs, rhs)
    return out.squeeze(-1) if scalar else out


def _padded(lhs: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    width = max(lhs.dim(), rhs.dim(), 2) - 1
    return tuple(  # type: ignore[return-value]
        t.reshape(t.shape[0], *[1] * (width - t.dim() + 1), *t.shape[1:]) for t in (lhs, rhs)
    )


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are taken in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

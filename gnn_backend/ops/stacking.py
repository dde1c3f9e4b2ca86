"""Parameters of many layers as one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.runtime import cuda, stacking
from gnn_backend.runtime.selection import DTYPE_NAMES


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.stack``, with one launch on a GPU however many tensors there are.

    The kernel finds them through a list of addresses that is kept for as long as they stay the
    same, as parameters' do. Gradients are views of one buffer.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of one shape, dtype and device.

    Returns
    -------
    Tensor [len(tensors), *]
    """
    if not _has_kernel(tensors):
        return torch.stack(list(tensors))
    out: Tensor = _Stack.apply(*tensors)
    return out


def _has_kernel(tensors: Sequence[Tensor]) -> bool:
    first = tensors[0]
    if first.device.type == "cpu":
        there = get_config().cpu_target == "emulator"
    else:
        there = first.device.type == "cuda" and cuda.available()
    return (
        there
        and first.dtype in DTYPE_NAMES
        and first.numel() > 0
        and all(map(Tensor.is_contiguous, tensors))
        and not any(map(Tensor.is_neg, tensors))
        and len({tensor.shape for tensor in tensors}) == 1
    )


class _Stack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        return stacking.stack(tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        # Autograd keeps a gradient as it is only where it lies in memory as the parameter does.
        return grad.contiguous().unbind(0)

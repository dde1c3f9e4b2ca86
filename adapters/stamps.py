"""Whether a tensor still holds what it held: what caches keep beside what they made of it."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def stamp(tensor: Tensor) -> tuple[Any, ...]:
    """State of a strided tensor: it changes with every in-place edit that torch knows of."""
    return tensor._version, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def is_untracked(tensor: Tensor) -> bool:
    """Whether in-place edits leave no trace, as in tensors made in inference mode."""
    return tensor.is_inference()

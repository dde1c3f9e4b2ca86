"""What DGL's layers of typed edges have in common: their linear maps and their types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.layers.projection import watched

TYPED_LINEAR = "dgl.nn.pytorch.linear.TypedLinear"


def is_plain(linear: Any, name: str) -> bool:
    """Whether a module is the stock one that its name says, and nobody watches its calls."""
    cls = type(linear)
    return f"{cls.__module__}.{cls.__qualname__}" == name and not watched(linear)


def is_types(types: Any, count: int, device: torch.device) -> bool:
    """Whether these are integer types, one for each of ``count`` rows."""
    if not isinstance(types, Tensor) or types.shape != (count,) or types.device != device:
        return False
    return not types.is_floating_point() and types.dtype is not torch.bool


def weight_of(linear: Any) -> Tensor:
    """Weights of a ``TypedLinear``'s types, [R, I, O], or [R, B, I / B, O / B] of blocks."""
    weight: Tensor = linear.get_weight()
    if linear.regularizer == "bdd":
        return weight.view(-1, linear.num_bases, linear.submat_in, linear.submat_out)
    return weight

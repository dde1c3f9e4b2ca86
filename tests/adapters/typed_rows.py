"""What the tests of both hosts' linear maps by type share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

TYPES, ROWS = 4, 30


def kinds(order: str = "mixed") -> Tensor:
    """Types of rows, of which one does not occur."""
    found = torch.arange(ROWS) * 7 % TYPES
    found = torch.where(found == TYPES - 2, 0, found)
    return found if order == "mixed" else found.sort().values


def has_kernels(case: dict[str, Any]) -> bool:
    """Whether a case's target takes its dtype."""
    return not (case["target"] == "emulator" and case["dtype"] is torch.float64)


class OneTensor(nn.Module):
    """A layer of tables by key as one of tables alone, whose results come as one tensor."""

    def __init__(self, layer: nn.Module, keys: Iterable[Any]) -> None:
        super().__init__()
        self.layer, self.keys = layer, list(keys)

    def forward(self, *tables: Tensor) -> Tensor:
        out = self.layer(dict(zip(self.keys, tables, strict=True)))
        return torch.cat([part.flatten() for part in out.values()])

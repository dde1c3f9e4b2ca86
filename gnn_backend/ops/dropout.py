"""Attention dropout: drawing a mask, and replaying our masks in the hosts' own code.

The hosts draw other masks from the same seed, so a check of one against the other lets the
stock code use ours.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gnn_backend.graph import Graph
from gnn_backend.runtime.random import Dropout, draw_dropout, philox_uniform

_DROPOUTS = frozenset({torch.dropout, torch.nn.functional.dropout})
_local = threading.local()


class Mask(NamedTuple):
    """A mask that was drawn: of [num_edges, heads] in the caller's edge order."""

    dropout: Dropout
    num_edges: int
    heads: int

    def scale(self, like: Tensor) -> Tensor:
        """What weights are multiplied with, 0 or 1 / (1 - p), in the dtype of ``like``."""
        return dropout_scale(self.num_edges, self.heads, self.dropout, like)


def draw_mask(p: float, graph: Graph, heads: int) -> Dropout | None:
    """Draw a call's dropout from torch's generator of the graph's device; None where p is 0."""
    if p == 0.0:
        return None
    dropout = draw_dropout(float(p), graph.device)
    recorded = getattr(_local, "recorded", None)
    if recorded is not None:
        recorded.append(Mask(dropout, graph.num_edges, heads))
    return dropout


def dropout_scale(num_edges: int, heads: int, dropout: Dropout, like: Tensor) -> Tensor:
    """What weights [E, H] are multiplied with: 0 or 1 / (1 - p), in the caller's edge order."""
    numbers = torch.arange(num_edges, device=like.device)
    threshold = torch.tensor(dropout.p, dtype=torch.float32, device=like.device)
    return (philox_uniform(numbers, heads, dropout) >= threshold).to(like.dtype) * dropout.scale


@contextlib.contextmanager
def recording() -> Iterator[list[Mask]]:
    """Collect the masks that this thread draws inside a ``with`` block, in order."""
    outer, masks = getattr(_local, "recorded", None), list[Mask]()
    _local.recorded = masks
    try:
        yield masks
    finally:
        _local.recorded = outer


class Replaying(TorchFunctionMode):
    """Lets torch's dropout of attention weights use recorded masks, inside a ``with`` block.

    A call is taken for that of a mask if it has its probability and its shape, [E, H] or
    [E, H, 1]. Torch draws all the same, so the random state afterwards is that of stock.
    """

    def __init__(self, masks: list[Mask]) -> None:
        super().__init__()
        self.masks = list(masks)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        return self._replaced(result, *args, **kwargs) if func in _DROPOUTS else result

    def _replaced(
        self,
        result: Tensor,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or inplace or not self.masks:
            return result
        mask = self.masks[0]
        if mask.dropout.p != p or input.shape[:2] != (mask.num_edges, mask.heads):
            return result
        return input * self.masks.pop(0).scale(input).view(input.shape)

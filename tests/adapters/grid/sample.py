"""What a case of the grid is made of, and the graphs that hosts share."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tests.adapters.pyg.helpers import edges

#: ``random`` has duplicates, loops and a destination without in-edges. In ``hub`` one destination
#: and one source have more neighbours than a chunk of a row holds. Most rows of ``sparse`` are
#: empty.
GRAPHS = ("random", "hub", "sparse")


@dataclasses.dataclass
class Reference:
    """The stock layer and its arguments, where they are not the accelerated layer's own."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclasses.dataclass
class Given:
    """An accelerated layer, its arguments, and the stock layer where that is another."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    reference: Reference | None = None


def graph_edges(kind: str, num_src: int, num_dst: int) -> Tensor:
    """Edges [2, E], at most 170 of them."""
    if kind == "sparse":
        return edges(num_src, min(num_dst, 4), count=6)
    plain = edges(num_src, num_dst)
    if kind == "random":
        return plain
    many = torch.arange(80)
    into = torch.stack([many % num_src, torch.full_like(many, 2)])
    out_of = torch.stack([torch.full_like(many, 1), many % num_dst])[:, :30]
    return torch.cat([plain, into, out_of], 1)

"""The order in which the rows of a graph are gone over, in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Order:
    """Permutations of the destinations and of the sources.

    Attributes
    ----------
    method : str
        Of ``reorder.METHODS``.
    bipartite : bool
        Destinations and sources are different nodes.
    dst, src : int32 [num_dst], [num_src]
        Place -> row. Both are one tensor where the nodes are and are in the same order.
    """

    method: str
    bipartite: bool
    dst: Tensor
    src: Tensor

    def of(self, direction: Literal["dst", "src"]) -> Tensor:
        """The order of the rows of a direction."""
        return self.dst if direction == "dst" else self.src

    def reversed(self) -> Order:
        """The order of the graph with its edges turned round."""
        return Order(self.method, self.bipartite, self.src, self.dst)

    def nbytes(self) -> int:
        held = (self.dst,) if self.dst is self.src else (self.dst, self.src)
        return sum(t.numel() * t.element_size() for t in held)

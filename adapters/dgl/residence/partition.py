"""``dgl.partition.NDArrayPartition``: which of several parts owns each row, on the device.

DGL has this on CUDA alone. A partition by ranges holds :class:`Ranges` where DGL holds its object.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.dgl.residence import support
from gnn_backend.adapters.dgl.residence.native import native


class Remainder:
    """Row ``i`` is row ``i // parts`` of part ``i % parts``."""

    def __init__(self, parts: int) -> None:
        self.parts = parts

    def owner(self, rows: Tensor) -> Tensor:
        return rows % self.parts

    def local(self, rows: Tensor) -> Tensor:
        return torch.div(rows, self.parts, rounding_mode="floor")

    def whole(self, rows: Tensor, part: int) -> Tensor:
        return rows * self.parts + part


class Ranges:
    """Part ``p`` owns the rows from ``bounds[p]`` to before ``bounds[p + 1]``."""

    def __init__(self, bounds: Tensor) -> None:
        self.bounds = bounds
        self.starts = bounds.tolist()
        self.parts = len(self.starts) - 1

    def owner(self, rows: Tensor) -> Tensor:
        return torch.searchsorted(self.bounds, rows.to(self.bounds.dtype), right=True) - 1

    def local(self, rows: Tensor) -> Tensor:
        return rows - self.bounds[self.owner(rows)].to(rows.dtype)

    def whole(self, rows: Tensor, part: int) -> Tensor:
        return rows + self.starts[part]

    def size(self, part: int) -> int:
        return int(self.starts[part + 1] - self.starts[part])


@native("NDArrayPartitionCreateRangeBased")
def by_ranges(size: int, parts: int, bounds: Any) -> Ranges:
    return Ranges(bounds.tensor)


def _scheme(partition: Any) -> Ranges | Remainder:
    made = partition.get()
    return made if type(made) is Ranges else Remainder(partition.num_parts())


def local_size(stock: Any, self: Any, part: int) -> int:
    """``NDArrayPartition.local_size``."""
    made = self.get()
    return made.size(part) if type(made) is Ranges else stock(self, part)


def map_to_local(stock: Any, self: Any, idxs: Tensor) -> Tensor:
    """``NDArrayPartition.map_to_local``."""
    if not support.is_resident(idxs):
        return stock(self, idxs)
    return _scheme(self).local(idxs)


def map_to_global(stock: Any, self: Any, idxs: Tensor, part_id: int) -> Tensor:
    """``NDArrayPartition.map_to_global``."""
    if not support.is_resident(idxs):
        return stock(self, idxs, part_id)
    return _scheme(self).whole(idxs, int(part_id))


def generate_permutation(stock: Any, self: Any, idxs: Tensor) -> tuple[Tensor, Tensor]:
    """``NDArrayPartition.generate_permutation``: rows by owner, in order; how many each has."""
    if not support.is_resident(idxs):
        return stock(self, idxs)
    scheme = _scheme(self)
    owners, order = torch.sort(scheme.owner(idxs), stable=True)
    numbers = torch.arange(scheme.parts + 1, dtype=owners.dtype, device=owners.device)
    return order.to(idxs.dtype), torch.searchsorted(owners, numbers).diff()

"""``dgl.cuda.GPUCache``: rows of a table on the CPU that are kept on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Rows:
    """Rows by key, of which those unused for longest go first.

    Parameters
    ----------
    capacity : int
        How many are kept.
    width : int
        Numbers of a row, float32.
    dtype : torch.dtype
        Of the keys.
    """

    def __init__(self, capacity: int, width: int, dtype: torch.dtype) -> None:
        self.capacity, self.width = capacity, width
        self.keys = torch.empty(0, dtype=dtype)  # ascending
        self.values = torch.empty(0, width)
        self.used = torch.empty(0, dtype=torch.int64)  # when, as a number of a call
        self.calls = 0

    def to(self, device: torch.device) -> None:
        if self.keys.device != device:
            self.keys, self.values, self.used = (
                tensor.to(device) for tensor in (self.keys, self.values, self.used)
            )

    def query(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of ``keys``, 0 where missing, and which are missing: places and keys."""
        self.to(keys.device)
        self.calls += 1
        if self.keys.numel() == 0:
            places = torch.arange(keys.numel(), dtype=keys.dtype, device=keys.device)
            return self.values.new_zeros(keys.numel(), self.width), places, keys
        place = torch.searchsorted(self.keys, keys).clamp_(max=self.keys.numel() - 1)
        there = self.keys[place] == keys
        values = torch.where(there[:, None], self.values[place], 0.0)
        self.used[place[there]] = self.calls
        missing = torch.nonzero(~there).flatten()
        return values, missing.to(keys.dtype), keys[missing]

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Keep rows in the place of those with the same keys, and of old ones beyond capacity."""
        self.to(keys.device)
        self.calls += 1
        now = torch.full_like(keys, self.calls, dtype=torch.int64)
        # New rows come first, so that a stable sort puts them before old ones of the same key.
        joined, order = torch.sort(torch.cat([keys, self.keys]), stable=True)
        first = torch.ones_like(joined, dtype=torch.bool)
        first[1:] = joined[1:] != joined[:-1]
        chosen = order[first]
        used = torch.cat([now, self.used])[chosen]
        if chosen.numel() > self.capacity:
            latest = used.topk(self.capacity).indices.sort().values
            chosen, used = chosen[latest], used[latest]
        self.keys = torch.cat([keys, self.keys])[chosen]
        self.values = torch.cat([values, self.values])[chosen]
        self.used = used


def create(
    stock: Any, self: Any, num_items: int, num_feats: int, idtype: torch.dtype = torch.int64
) -> None:
    """``GPUCache.__init__``, whose packed function the CPU's library has not got."""
    self._cache = Rows(int(num_items), int(num_feats), idtype)
    self.idtype = idtype
    self.total_miss = self.total_queries = 0


def query(stock: Any, self: Any, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``GPUCache.query``: values, and places and keys of those that are missing."""
    found = self._cache.query(keys.to(self.idtype))
    self.total_queries += keys.shape[0]
    self.total_miss += found[2].shape[0]
    return found


def replace(stock: Any, self: Any, keys: Tensor, values: Tensor) -> None:
    """``GPUCache.replace``."""
    rows = self._cache
    rows.replace(keys.to(self.idtype), values.detach().float().reshape(-1, rows.width))

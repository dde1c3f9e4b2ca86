"""Lists of tiles: rows that are sorted by segment, cut for the blocks of a kernel.

A list is made on the device from the segments' bounds, without waiting for it: its length is the
largest that so many rows and segments can need, and the tiles too many are empty.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class RowTiles(NamedTuple):
    """Tiles of at most so many places of one segment.

    Attributes
    ----------
    tiles : int32 [n, 4]
        Segment, first place, number of places (0: padding), 0. Those of a segment follow one
        another.
    first : int32 [T + 1]
        Number of the first tile of each segment; at the end, of the first one of padding.
    """

    tiles: Tensor
    first: Tensor


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # bounds -> {(version, ...): tiles}
_lock = threading.Lock()


def row_tiles(ptr: Tensor, num_rows: int, size: int) -> RowTiles:
    """The tiles of segments, as made before for the same bounds or now.

    Parameters
    ----------
    ptr : int32 or int64 [T + 1]
        Ascending bounds of the segments; what lies outside 0 to ``num_rows`` is cut off.
    num_rows : int
    size : int
        Places a tile.
    """
    if ptr.is_inference():  # has no version, and nothing else says whether it was changed
        return make_row_tiles(ptr, num_rows, size)
    key = (ptr._version, num_rows, size)
    with _lock:
        lists = _kept.get(ptr)
        if lists is None or any(version != ptr._version for version, *_ in lists):
            lists = _kept[ptr] = {}
        found = lists.get(key)
    if found is None:
        found = lists[key] = make_row_tiles(ptr, num_rows, size)
    return found


@torch.no_grad()
def make_row_tiles(ptr: Tensor, num_rows: int, size: int) -> RowTiles:
    """Cut segments into tiles; see :func:`row_tiles`."""
    segments = ptr.numel() - 1
    bounds = ptr.long().clamp(0, num_rows)
    counts = (bounds.diff().clamp(min=0) + (size - 1)).div(size, rounding_mode="floor")
    first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    numbers = torch.arange(num_rows // size + min(segments, num_rows), device=ptr.device)
    of = torch.searchsorted(first[1:], numbers, right=True).clamp(max=max(0, segments - 1))
    begin = bounds[of] + (numbers - first[of]) * size
    count = (bounds[of + 1] - begin).clamp(max=size)
    count = torch.where(numbers < first[-1], count, 0)
    tiles = torch.stack([of, begin, count, torch.zeros_like(of)], 1)
    return RowTiles(tiles.int(), first.clamp(max=len(tiles)).int())

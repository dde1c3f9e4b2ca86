"""Block-sparse form of one direction: windows of 16 rows, their columns compacted into tiles.

The distinct columns of a window, ascending, fill tiles of 16 rows by 16 columns, so that a tile's
rows and columns meet on tensor cores although their ids are scattered. A bitmap says which of the
256 pairs are edges. An edge that is there several times takes as many columns of the same id, so
every edge has a place of its own and duplicates need neither counts nor a case of their own.

A window's tiles are cut into tasks as rows are (:class:`Splits`, whose rows are windows here).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph.build import expand_rows, index_dtype
from gnn_backend.graph.splits import Splits, count_splits, make_splits

TILE = 16  # rows and columns of a tile
ENTRIES = TILE * TILE
WORDS = ENTRIES // 32  # of a tile's bitmap; a lane of a warp owns a byte
CHUNKS = (32, 64, 128, 256, 512)  # tiles a task
_FULL_TASKS = 2000  # tasks of full length that keep a large GPU busy
_INT32_MAX = 2**31 - 1
_SAMPLED_WINDOWS = 32
_SAMPLED_EDGES = 4096  # a window


class BlockStats(NamedTuple):
    """What the choice between tiles and rows is made from.

    Attributes
    ----------
    num_edges : int
    num_windows : int
    num_tiles : float
        Counted, or estimated from a sample of windows.
    """

    num_edges: int
    num_windows: int
    num_tiles: float

    @property
    def edges_per_tile(self) -> float:
        """0 to 256; at 16 every column has one edge, and nothing is shared."""
        return self.num_edges / max(1.0, self.num_tiles)


@dataclass(frozen=True)
class BlockSparse:
    """Tiles of one direction of a graph.

    Attributes
    ----------
    num_rows, num_edges : int
    columns : int32 [T * 16]
        Ids of the tiles' columns; 0 in the places that the last tile of a window leaves over.
    masks : int32 [T * 8]
        Bitmaps, 32 bytes a tile. Byte ``4 * (row % 8) + column % 8 // 2`` has bit
        ``4 * (column // 8) + 2 * (row // 8) + column % 2``: what a lane holds of a product.
    occupied : int32 [W]
        Bit r: row r of the window has edges.
    splits : Splits
        Tasks over the windows, counted in tiles.
    """

    num_rows: int
    num_edges: int
    columns: Tensor
    masks: Tensor
    occupied: Tensor
    splits: Splits

    @property
    def num_windows(self) -> int:
        return self.occupied.numel()

    @property
    def num_tiles(self) -> int:
        return self.columns.numel() // TILE

    @property
    def stats(self) -> BlockStats:
        return BlockStats(self.num_edges, self.num_windows, float(self.num_tiles))

    def nbytes(self) -> int:
        held = (self.columns, self.masks, self.occupied)
        return sum(t.numel() * t.element_size() for t in held) + self.splits.nbytes()


def windows_of(num_rows: int) -> int:
    """Windows that cover ``num_rows`` rows."""
    return -(-num_rows // TILE)


def build_block_sparse(indptr: Tensor, indices: Tensor, num_columns: int) -> BlockSparse:
    """Compact a CSR into tiles: one sort, scans, and one device-to-host copy.

    Parameters
    ----------
    indptr : int32 or int64 [rows + 1]
    indices : int32 [E]
        Columns, all below ``num_columns``.
    num_columns : int
    """
    num_rows, num_edges = indptr.numel() - 1, indices.numel()
    entries = _compact(indptr, indices, num_columns)
    tiles = entries.tile_ptr.diff()
    counts = torch.cat([entries.tile_ptr[-1].long()[None], count_splits(tiles, CHUNKS).flatten()])
    num_tiles, *sizes = counts.tolist()
    chosen = [i for i, chunk in enumerate(CHUNKS) if num_tiles >= chunk * _FULL_TASKS]
    which = max(chosen, default=0)
    splits = make_splits(entries.tile_ptr, CHUNKS[which], *sizes[3 * which : 3 * which + 3])
    # All edges of a column write the same id.
    columns = indices.new_zeros(num_tiles * TILE)
    columns.scatter_(0, entries.slot.long(), entries.column_id)
    masks = indices.new_zeros(num_tiles * WORDS)
    # Every edge has a bit of its own, so a sum is a union, in whatever order.
    masks.scatter_add_(0, entries.word.long(), torch.ones_like(entries.bit) << entries.bit)
    return BlockSparse(num_rows, num_edges, columns, masks, _occupied(indptr), splits)


def edge_places(indptr: Tensor, indices: Tensor, num_columns: int) -> Tensor:
    """Where each edge of a CSR stands in its tiles, for values an edge.

    Returns
    -------
    int32 or int64 [E]
        ``256 * tile + 8 * byte + bit`` of the bitmaps, in CSR order, no two alike.
    """
    entries = _compact(indptr, indices, num_columns)
    dtype = torch.int32 if indices.numel() <= _INT32_MAX // ENTRIES else torch.int64
    place = entries.word.to(dtype) * 32 + entries.bit
    return torch.empty_like(place).scatter_(0, entries.order, place)


def sample_stats(indptr: Tensor, indices: Tensor) -> BlockStats:
    """Estimate the tiles of a CSR from 32 windows and at most 4,096 edges of each.

    Costs a small sort and one device-to-host copy. The number of tiles is not underestimated but by
    chance: edges that are not looked at could only have shared columns.
    """
    num_rows, num_edges = indptr.numel() - 1, indices.numel()
    windows = windows_of(num_rows)
    if not num_edges:
        return BlockStats(0, windows, 0.0)
    device, count = indptr.device, min(windows, _SAMPLED_WINDOWS)
    chosen = torch.arange(count, device=device) * windows // count
    begin = indptr[chosen * TILE].long()
    end = indptr[((chosen + 1) * TILE).clamp(max=num_rows)].long()
    position = begin[:, None] + torch.arange(_SAMPLED_EDGES, device=device)
    inside = position < end[:, None]
    columns = torch.where(inside, indices[position.clamp(max=num_edges - 1)], -1).sort(1).values
    first = torch.ones_like(inside)
    first[:, 1:] = columns[:, 1:] != columns[:, :-1]
    distinct = (first & (columns >= 0)).sum(1)
    tiles = (distinct + TILE - 1).div(TILE, rounding_mode="floor").sum()
    seen, tiled = torch.stack([inside.sum(), tiles]).tolist()
    return BlockStats(num_edges, windows, num_edges * tiled / seen if seen else float(num_edges))


class _Entries(NamedTuple):
    """The edges by (window, column, row), and where each stands.

    ``order``: CSR position; ``slot``: 16 * tile + column; ``word``, ``bit``: of the bitmaps.
    """

    order: Tensor
    column_id: Tensor
    slot: Tensor
    word: Tensor
    bit: Tensor
    tile_ptr: Tensor


def _compact(indptr: Tensor, indices: Tensor, num_columns: int) -> _Entries:
    num_rows, num_edges = indptr.numel() - 1, indices.numel()
    rows = expand_rows(indptr, num_edges)
    window = rows >> 4
    keys = torch.add(indices.long(), window, alpha=num_columns)
    if windows_of(num_rows) * num_columns <= 2 * (_INT32_MAX + 1):
        keys = (keys - (_INT32_MAX + 1)).int()  # sorts in half the time
    # Stable, so that rows ascend. A window's edges stay within its part of the CSR, and `window`
    # holds after the sort as well.
    keys, order = torch.sort(keys, stable=True)
    row = rows[order] & 15
    dtype = index_dtype(num_edges + num_rows)
    starts = _starts(keys)
    group = starts.cumsum(0, dtype=dtype)  # from 1: edges of one column of a window
    column, columns_before = _columns(starts, starts | _starts(row), group, indptr)
    tiles = (columns_before.diff() + (TILE - 1)) >> 4
    tile_ptr = torch.nn.functional.pad(tiles.cumsum(0, dtype=dtype), (1, 0))
    slot = column.add_((tile_ptr * TILE - columns_before)[window])
    column = (slot & 15).int()
    bit = ((column & 6) << 2) + ((column & 8) >> 1) + (column & 1) + ((row & 8) >> 2)
    word = (slot >> 4) * WORDS + (row & 7)
    return _Entries(order, indices[order], slot, word, bit, tile_ptr)


def _columns(
    starts: Tensor, distinct: Tensor, group: Tensor, indptr: Tensor
) -> tuple[Tensor, Tensor]:
    """The column of each edge, counted over all windows, and the columns before each window.

    ``starts``: of a column of a window; ``distinct``: of an edge; ``group``: columns up to here.
    """
    dtype, windows = group.dtype, _before_windows(group, indptr)
    if bool(distinct.all()):
        return group - 1, windows
    own, number = (group - 1).long(), _times_before(distinct, dtype)
    width = group.new_zeros(group.numel() + 1)
    width.scatter_reduce_(0, own, number + 1, "amax")
    base = width.cumsum(0, dtype=dtype) - width  # columns before each group
    return base[own].add_(number), base[windows]


def _before_windows(group: Tensor, indptr: Tensor) -> Tensor:
    """Groups before each window and after the last: int64 [W + 1]."""
    bounds = indptr[::TILE]
    if (indptr.numel() - 1) % TILE:
        bounds = torch.cat([bounds, indptr[-1:]])
    return torch.nn.functional.pad(group, (1, 0))[bounds.long()].long()


def _starts(keys: Tensor) -> Tensor:
    """Where a run of equal keys begins: bool [E]."""
    starts = torch.ones(keys.numel(), dtype=torch.bool, device=keys.device)
    torch.ne(keys[1:], keys[:-1], out=starts[1:])
    return starts


def _times_before(starts: Tensor, dtype: torch.dtype) -> Tensor:
    """Place of each entry in its run: 0 but for duplicates. ``starts``: where a run begins."""
    count = starts.numel()
    at = torch.arange(count, dtype=dtype, device=starts.device)
    run = starts.cumsum(0) - 1
    # What is no start goes to one more place, which nobody reads.
    first = at.new_zeros(count + 1).scatter_(0, torch.where(starts, run, count), at)
    return at - first[run]


def _occupied(indptr: Tensor) -> Tensor:
    num_rows = indptr.numel() - 1
    rows = torch.nn.functional.pad((indptr.diff() > 0).int(), (0, -num_rows % TILE))
    powers = torch.arange(TILE, device=indptr.device, dtype=torch.int32)
    return (rows.view(-1, TILE) << powers).sum(1, dtype=torch.int32)

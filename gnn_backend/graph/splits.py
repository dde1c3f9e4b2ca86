"""Row splits: every CSR row cut into chunks of bounded length, so that hubs do not serialise.

One lane group of a kernel (or one step of a CPU loop) owns one task. A row that fits one chunk
is written directly; a longer one writes a partial per chunk, which a merge kernel combines in
slot order, so the result does not depend on scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

COUNT_SHIFT = 48  # a task packs `begin` into 48 bits and `count` into the 16 above
MAX_CHUNK = 32767  # keeps the packed count non-negative
WINDOW = 256  # tasks of ordered rows that are sorted by length: a few blocks of a GPU


@dataclass(frozen=True)
class Splits:
    """Tasks of one direction at one chunk length.

    Attributes
    ----------
    chunk : int
        Largest number of neighbours a task owns.
    tasks : int32 [T, 4]
        ``(row, slot, packed_lo, packed_hi)``; ``packed = begin | count << 48`` as int64, slot
        -1 if the row has one task. A row without neighbours has one task of count 0.
    num_slots : int
        Partials needed.
    heavy_rows : int32 [K]
        Rows of more than one task, ascending.
    heavy_ptr : int32 [K + 1]
        Slots of heavy row k: ``heavy_ptr[k] .. heavy_ptr[k + 1]``.
    """

    chunk: int
    tasks: Tensor
    num_slots: int
    heavy_rows: Tensor
    heavy_ptr: Tensor

    @property
    def num_tasks(self) -> int:
        return self.tasks.shape[0]

    def nbytes(self) -> int:
        return sum(
            t.numel() * t.element_size() for t in (self.tasks, self.heavy_rows, self.heavy_ptr)
        )


def count_splits(degree: Tensor, chunks: tuple[int, ...]) -> Tensor:
    """Sizes of the splits of degree sequences, without leaving the device.

    Parameters
    ----------
    degree : int32 or int64 [..., N]
    chunks : chunk lengths, C of them

    Returns
    -------
    int64 [..., C, 3]
        Tasks, slots and heavy rows for each chunk length.
    """
    lengths = _column(chunks, degree.device, degree.dtype)
    # Not (degree + length - 1) / length, which passes the largest int32 for the largest degrees.
    pieces = (degree.unsqueeze(-2) - 1).div(lengths, rounding_mode="floor") + 1
    heavy = pieces > 1
    return torch.stack(
        [pieces.clamp(min=1).sum(-1), (pieces * heavy).sum(-1), heavy.sum(-1)], dim=-1
    ).long()


@lru_cache(maxsize=64)
def _column(numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The numbers as a column, filled in on the device: a copy to it waits for all its work."""
    return torch.cat([torch.full((1, 1), n, device=device, dtype=dtype) for n in numbers])


def bound_splits(num_rows: int, num_edges: int, chunk: int) -> tuple[int, int, int]:
    """Most tasks, slots and heavy rows that any rows with so many edges can have.

    For splits that must not wait for the device: ``make_splits`` with these sizes and ``padded``.
    One row is added at the end, whose tasks are there to fill up.
    """
    # A row of d > 0 edges has 1 + (d - 1) // chunk tasks, at most 2 (d - 1) / chunk if d > chunk.
    num_tasks = num_rows + num_edges // chunk + 1
    return num_tasks, 2 * num_edges // chunk, min(num_rows, num_edges // (chunk + 1))


def make_splits(
    indptr: Tensor,
    chunk: int,
    num_tasks: int,
    num_slots: int,
    num_heavy: int,
    *,
    padded: bool = False,
    order: Tensor | None = None,
) -> Splits:
    """Build the tasks of a CSR whose sizes ``count_splits`` gave; no device-to-host copy.

    With ``padded`` the sizes are those of ``bound_splits``, and the last row, which has no edges,
    takes the tasks and heavy rows that are too many: they read nothing and write zeros to it.

    On CUDA the tasks are ordered longest first (the long ones start early, the tail is short,
    and tasks that share a warp are of like length); on the CPU they follow the rows, which keeps
    memory accesses in order. With ``order``, a permutation of the rows, they follow that: rows that
    stand together in it run at the same time and find each other's neighbours in the caches. Only
    within windows of ``WINDOW`` tasks are they then ordered by length, so that those that share a
    warp still are of like length. What a row reads, and in which order, is the same in any case.
    """
    device, degree = indptr.device, indptr.diff().long()
    pieces = (degree + chunk - 1).div(chunk, rounding_mode="floor")
    per_row = pieces.clamp(min=1)
    if padded:
        per_row = torch.cat([per_row[:-1], (num_tasks - per_row[:-1].sum())[None]])
    rows = torch.repeat_interleave(
        torch.arange(degree.numel(), device=device), per_row, output_size=num_tasks
    )
    piece = torch.arange(num_tasks, device=device) - (per_row.cumsum(0) - per_row)[rows]
    begin = indptr[:-1].long()[rows] + piece * chunk
    count = (degree[rows] - piece * chunk).clamp(0, chunk)
    slots_per_row = torch.where(pieces > 1, pieces, 0)
    first_slot = slots_per_row.cumsum(0) - slots_per_row
    slot = torch.where(pieces[rows] > 1, first_slot[rows] + piece, -1)
    packed = (begin | (count << COUNT_SHIFT)).view(torch.int32).view(-1, 2)
    tasks = torch.cat([torch.stack([rows, slot], 1).int(), packed], 1)
    if order is not None:
        tasks = tasks[_following(order, rows, count, chunk)]
    elif device.type == "cuda":
        tasks = tasks[torch.argsort(count, descending=True, stable=True)]
    heavy = pieces > 1
    heavy_rows = torch.argsort(heavy, descending=True, stable=True)[:num_heavy]
    if padded:
        heavy_rows = torch.where(heavy[heavy_rows], heavy_rows, degree.numel() - 1)
    heavy_ptr = torch.cat([first_slot[heavy_rows], slots_per_row.sum()[None]]).int()
    return Splits(chunk, tasks.contiguous(), num_slots, heavy_rows.int(), heavy_ptr)


def _following(order: Tensor, rows: Tensor, count: Tensor, chunk: int) -> Tensor:
    """Tasks in the order of their rows, within windows longest first."""
    place = torch.empty_like(order, dtype=torch.int64)
    place[order.long()] = torch.arange(order.numel(), device=order.device)
    by_place = torch.argsort(place[rows], stable=True)
    window = torch.arange(rows.numel(), device=order.device).div(WINDOW, rounding_mode="floor")
    by_length = torch.argsort(window * (chunk + 1) + (chunk - count[by_place]), stable=True)
    return by_place[by_length]

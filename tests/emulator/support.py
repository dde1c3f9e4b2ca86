"""Helpers of the emulator's tests."""

from __future__ import annotations

import struct

import torch

from gnn_backend.runtime import emulator

ORDERS = ("forward", "reversed", "random:1", "random:2")


def launch(
    source: str,
    entry: str,
    block: int | tuple[int, int, int],
    *args: torch.Tensor | int,
    grid: int | tuple[int, int, int] = 1,
    order: str | None = "forward",
    shared_bytes: int = 0,
) -> None:
    """Launch a kernel whose argument struct holds 8-byte fields: pointers and integers."""
    words = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
    emulator.launch(
        source,
        entry,
        (grid, 1, 1) if isinstance(grid, int) else grid,
        (block, 1, 1) if isinstance(block, int) else block,
        struct.pack(f"{len(words)}q", *words),
        lane_order=order,
        shared_bytes=shared_bytes,
    )

"""Page-locked graphs and features, which a sampler on the device reads from the CPU's memory.

DGL's CUDA build reads page-locked structure from the device in place. Here a pinned graph is
uploaded when the device first asks for it and kept there until it is unpinned; features stay on the
CPU, and only the rows asked for are copied.
"""

from __future__ import annotations

from typing import Any

import torch
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence.index import ResidentIndex, from_host

_PINNED = "gnn_backend-pinned"
_TWIN = "gnn_backend-twin"


def pin(index: Any) -> Any:
    """Mark a CPU index as pinned."""
    index._cache[_PINNED] = True
    return index


def unpin(index: Any) -> Any:
    """Take the mark off, and give up the copy on the device."""
    index._cache.pop(_PINNED, None)
    for key in [key for key in index._cache if key.startswith(_TWIN)]:
        del index._cache[key]
    return index


def is_pinned(index: Any) -> bool:
    """Whether a CPU index is marked as pinned."""
    return bool(index._cache.get(_PINNED, False))


def twin(index: Any, device: torch.device) -> Any:
    """The resident twin of a pinned CPU index; any other index as it is."""
    if not is_pinned(index):
        return index
    key = f"{_TWIN}-{device}"
    found = index._cache.get(key)
    if found is None:
        found = index._cache[key] = from_host(index, device)
    return found


class PageLock:
    """Holds a tensor's memory page-locked until it is unpinned or freed."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = None
        if tensor.numel() == 0 or tensor.is_pinned():
            return
        size = tensor.numel() * tensor.element_size()
        code = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), size, 0))
        if code != 0:
            raise DGLError(f"Failed to pin {size} bytes of memory: CUDA error {code}.")
        self._tensor = tensor

    def unpin_memory_(self) -> None:
        if self._tensor is not None:
            torch.cuda.cudart().cudaHostUnregister(self._tensor.data_ptr())
            self._tensor = None

    def __del__(self) -> None:
        self.unpin_memory_()


def rows_of_pinned(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows of a page-locked tensor, on the device of ``rows``; only they are copied."""
    ids = rows.cpu().long()
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= tensor.shape[0]:
            raise DGLError(f"Expect rows in the range [0, {tensor.shape[0]}), but got "
                           f"{low} to {high}.")  # fmt: skip
    picked = torch.empty(
        (ids.numel(), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=rows.is_cuda
    )
    torch.index_select(tensor, 0, ids, out=picked)
    return picked.to(rows.device, non_blocking=True)


__all__ = ["PageLock", "ResidentIndex", "is_pinned", "pin", "rows_of_pinned", "twin", "unpin"]

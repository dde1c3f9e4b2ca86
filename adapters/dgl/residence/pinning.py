"""Page-locked graphs and features, which a sampler on the device reads from the CPU's memory.

DGL's CUDA build reads page-locked structure from the device in place. Here a pinned graph is
uploaded when the device first asks for it and kept there until it is unpinned; features stay on the
CPU, and only the rows asked for are copied.
"""

from __future__ import annotations

from typing import Any

import torch
from dgl import ndarray as nd
from dgl.base import DGLError
from torch import Tensor

from gnn_backend.adapters.dgl.residence.arrays import memory_of
from gnn_backend.adapters.dgl.residence.index import ResidentIndex, from_host

_PINNED = "gnn_backend-pinned"
_TWIN = "gnn_backend-twin"
_LOCK = "_gnn_backend_page_lock"


def pin(index: Any) -> Any:
    """Mark a CPU index as pinned."""
    index._cache[_PINNED] = True
    return index


def pinned_copy(index: Any) -> Any:
    """A pinned index of the same structure; a CPU index is left as it is."""
    if is_pinned(index):
        return index
    copied = index.copy_to(nd.cpu(0))  # shares the arrays, which nothing changes, and no mark
    return pin(copied)


def formats(stock: Any, index: Any, formats: Any) -> Any:
    """``HeteroGraphIndex.formats``: pinned if made of arrays that the pinned ``index`` has already.

    DGL keeps those of the created formats that are asked for, and else makes a new one.
    """
    found = stock(index, formats)
    if formats is not None and is_pinned(index):
        created = set(stock(index, None)["created"])
        if created & set([formats] if isinstance(formats, str) else formats):
            pin(found)
    return found


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
    """Holds a tensor's memory page-locked until it is released or freed."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = None
        size = tensor.numel() * tensor.element_size()
        code = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), size, 0))
        if code != 0:
            raise DGLError(f"Failed to pin {size} bytes of memory: CUDA error {code}.")
        self._tensor = tensor

    def release(self) -> None:
        if self._tensor is not None:
            torch.cuda.cudart().cudaHostUnregister(self._tensor.data_ptr())
            self._tensor = None

    def __del__(self) -> None:
        self.release()


def lock_array(array: Any) -> None:
    """``NDArray.pin_memory_`` of an array of the CPU; what is page-locked already stays so."""
    tensor = memory_of(array)
    if tensor.numel() and not tensor.is_pinned():
        setattr(array, _LOCK, PageLock(tensor))


def unlock_array(array: Any) -> None:
    """``NDArray.unpin_memory_``: undoes :func:`lock_array`.

    Raises
    ------
    DGLError
        The memory was page-locked by other means, which have to undo it.
    """
    lock = array.__dict__.pop(_LOCK, None)
    if lock is not None:
        lock.release()
        return
    tensor = memory_of(array)
    if tensor.numel() and tensor.is_pinned():
        raise DGLError("Cannot unpin memory that this array did not pin; got an array over memory "
                       "that torch or another array page-locked, expected one after pin_memory_(). "
                       "Leave it to its owner, or free that.")  # fmt: skip


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


__all__ = [
    "PageLock",
    "ResidentIndex",
    "formats",
    "is_pinned",
    "lock_array",
    "pin",
    "pinned_copy",
    "rows_of_pinned",
    "twin",
    "unlock_array",
    "unpin",
]

"""Fresh memory on the CPU whose first touch is cheap.

The C library hands memory of this size back to the system when it is freed, so every layer and
every step touches new pages, and a fault a 4 KiB page costs as much as writing it several times.
Large tensors therefore ask for huge pages, which Linux grants on request in its usual setting
(``madvise``). It is advice: where it is not heeded, or for other systems, nothing changes.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

LEAST_BYTES = 4 << 20  # below this the pages at both ends, which stay small, are most of it
_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")


def fresh(*shape: int, dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor on the CPU, on huge pages where it is large."""
    tensor = torch.empty(shape, dtype=dtype)
    size = tensor.numel() * tensor.element_size()
    if size >= LEAST_BYTES:
        _advise(tensor.data_ptr(), size)
    return tensor


def fresh_like(tensor: Tensor) -> Tensor:
    """:func:`fresh` in the shape and dtype of a tensor, contiguous."""
    return fresh(*tensor.shape, dtype=tensor.dtype)


def _advise(address: int, size: int) -> None:
    found = _madvise()
    if found is None:
        return
    call, page = found
    start, stop = -(-address // page) * page, (address + size) // page * page
    if stop > start:
        call(start, stop - start, mmap.MADV_HUGEPAGE)


@functools.cache
def _madvise() -> tuple[Callable[[int, int, int], int], int] | None:
    """The system's call and the size of its huge pages, or None."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        page = int(_SIZE.read_text())
        call = ctypes.CDLL(None).madvise
    except (OSError, ValueError, AttributeError):
        return None
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    call.restype = ctypes.c_int
    return call, page

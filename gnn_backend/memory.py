"""Peak memory of a call: allocated bytes on CUDA, resident growth on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")
_RESET_PEAK = Path("/proc/self/clear_refs")


def cuda_peak_bytes(call: Callable[[], Any], base: int | None = None) -> int:
    """Most bytes allocated at once on the current CUDA device while ``call`` runs.

    Parameters
    ----------
    call : callable
    base : int, optional
        Bytes that do not count; by default what is allocated when this is called.
    """
    gc.collect()
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated() if base is None else base
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - base


def resident_growth(call: Callable[[], Any]) -> int | None:
    """How far the process's resident memory rose above its present size while ``call`` ran.

    Memory that was freed before is handed back to the system first, as far as the C library can,
    for it would be used again without a trace. A fresh process gives the cleanest figure.

    Returns
    -------
    int or None
        Bytes; None where the system does not tell the peak of a stretch of time: outside of
        Linux, and where ``/proc`` cannot be written. The call is made all the same.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    before = _status_bytes("VmRSS") if _reset_resident_peak() else None
    call()
    peak = None if before is None else _status_bytes("VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


def available_bytes(device: torch.device | str) -> int | None:
    """Bytes that can still be allocated on the device; None where that is not known."""
    if torch.device(device).type == "cuda":
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + unused
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _reset_resident_peak() -> bool:
    """Let the system measure the peak resident set afresh; False where it does not."""
    try:
        _RESET_PEAK.write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(key: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return None

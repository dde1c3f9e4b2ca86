"""Peak memory of a call: allocated bytes on CUDA, resident growth on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
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


def resident_growth(call: Callable[[], Any]) -> int:
    """How far the process's resident memory rose above its present size while ``call`` ran.

    Memory that was freed before is handed back to the system first, as far as the C library can,
    for it would be used again without a trace. A fresh process gives the cleanest figure.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    _reset_resident_peak()
    before = _resident_bytes()
    call()
    return max(0, _resident_peak_bytes() - before)


def available_bytes(device: torch.device | str) -> int | None:
    """Bytes that can still be allocated on the device; None where that is not known."""
    if torch.device(device).type == "cuda":
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + unused
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _reset_resident_peak() -> None:
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the whole process's peak
        _RESET_PEAK.write_text("5")


def _resident_bytes() -> int:
    return _status_bytes("VmRSS") or _maxrss_bytes()


def _resident_peak_bytes() -> int:
    return _status_bytes("VmHWM") or _maxrss_bytes()


def _status_bytes(key: str) -> int | None:
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None


def _maxrss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

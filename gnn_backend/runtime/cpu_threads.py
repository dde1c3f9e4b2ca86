"""Threads for Numba kernels: load TBB, follow torch's thread count, never abort the process.

Of Numba's threading layers only TBB survives both a fork and concurrent callers: GNU OpenMP
kills a forked child, and workqueue aborts when two threads launch at once. Without TBB the
kernels therefore run on the calling thread alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import torch
from numba.np.ufunc import parallel

from gnn_backend.runtime import cpu_module

_lock = threading.Lock()
_settings: Any = numba.config  # its attributes are set at run time


class _State:
    """What must be known when the process forks."""

    running = 0  # kernels on the pool
    pool_lost = False
    lost_before_fork = False


_state = _State()


def _library_candidates() -> Iterator[Path | str]:
    name = {"darwin": "libtbb.12.dylib", "win32": "tbb12.dll"}.get(sys.platform, "libtbb.so.12")
    yield name
    # pip installs the library into the environment's lib folder, where no loader looks.
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("tbb") or ():
            if file.name == name:
                yield Path(str(file.locate())).resolve()
    yield Path(sys.prefix) / "lib" / name


def _load_tbb() -> bool:
    for candidate in _library_candidates():
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(candidate), ctypes.RTLD_GLOBAL)
            return True
    return False


@functools.cache
def _start_tbb() -> bool:
    with _lock:
        return _tbb_may_load() and str(_started_layer()) == "tbb"


def _tbb_may_load() -> bool:
    """Whether Numba would choose TBB, or has; makes the library findable."""
    if parallel._is_initialized:
        return True
    chosen = str(_settings.THREADING_LAYER).lower()
    if chosen == "default" and _settings.THREADING_LAYER_PRIORITY[0] != "tbb":
        return False
    if chosen not in ("default", "tbb", "safe", "threadsafe", "forksafe") or not _load_tbb():
        return False
    try:
        parallel._check_tbb_version_compatible()
        importlib.import_module("numba.np.ufunc.tbbpool")
    except ImportError:
        return False
    return True


def _started_layer() -> str:
    numba.get_num_threads()  # starts the layer
    return numba.threading_layer()


def parallel_available() -> bool:
    """Whether kernels may use several threads: TBB is loaded and alive in this process."""
    return _start_tbb() and not _state.pool_lost


def _before_fork() -> None:
    _lock.acquire()
    _state.lost_before_fork = _state.pool_lost
    # Numba hands the pool over to the child only if the main thread forks while it is idle.
    main = threading.current_thread() is threading.main_thread()
    if parallel._is_initialized and (_state.running or not main):
        _state.pool_lost = True


def _after_fork_in_parent() -> None:
    _state.pool_lost = _state.lost_before_fork
    _lock.release()


def _after_fork_in_child() -> None:
    _state.running = 0
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def run(kernel: int, blocks: int, arguments: int) -> None:
    """Run the kernel at an address over all blocks, on as many threads as torch would use.

    Numba's thread count belongs to the calling thread, so concurrent callers do not disturb
    each other; it is put back at the end.
    """
    threads = min(torch.get_num_threads(), blocks)
    if threads == 1 or not parallel_available():
        cpu_module.run_blocks(parallel=False)(kernel, blocks, arguments)
        return
    loop = cpu_module.run_blocks(parallel=True)
    before, chunk = numba.get_num_threads(), numba.get_parallel_chunksize()
    numba.set_num_threads(min(threads, _settings.NUMBA_NUM_THREADS))
    numba.set_parallel_chunksize(1)  # blocks are handed out one by one, none waits behind another
    with _lock:
        _state.running += 1
    try:
        loop(kernel, blocks, arguments)
    finally:
        with _lock:
            _state.running -= 1
        numba.set_num_threads(before)
        numba.set_parallel_chunksize(chunk)

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
_fork_lost_pool = False


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
        if not parallel._is_initialized:
            chosen = str(_settings.THREADING_LAYER).lower()
            if chosen not in ("default", "tbb", "safe", "threadsafe", "forksafe"):
                return False
            if chosen == "default" and _settings.THREADING_LAYER_PRIORITY[0] != "tbb":
                return False
            if not _load_tbb():
                return False
            try:
                parallel._check_tbb_version_compatible()
                importlib.import_module("numba.np.ufunc.tbbpool")
            except ImportError:
                return False
            numba.get_num_threads()  # starts the layer
        return str(numba.threading_layer()) == "tbb"


def parallel_available() -> bool:
    """Whether kernels may use several threads: TBB is loaded and alive in this process."""
    return _start_tbb() and not _fork_lost_pool


def _before_fork() -> None:
    global _fork_lost_pool
    # TBB can hand its pool over to the child only when the main thread forks. The flag is put
    # back in the parent.
    if parallel._is_initialized and threading.current_thread() is not threading.main_thread():
        _fork_lost_pool = True


def _after_fork_in_parent() -> None:
    global _fork_lost_pool
    _fork_lost_pool = False


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


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
    try:
        loop(kernel, blocks, arguments)
    finally:
        numba.set_num_threads(before)
        numba.set_parallel_chunksize(chunk)

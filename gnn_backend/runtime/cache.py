"""Where compiled kernels are kept: the cache directory, or a temporary one if it can't be written.

Without a folder nothing could be compiled at all, for every engine writes its kernels to files
first. So a process whose cache directory is read-only, full or absent gets a folder of its own,
removed at its end: its calls stay fast, and only the compilation is repeated by each process.
"""

from __future__ import annotations

import multiprocessing.util
import os
import shutil
import tempfile
import threading
import warnings
from pathlib import Path

from gnn_backend.config import get_config
from gnn_backend.errors import KernelCompileError

#: What is kept: GPU machine code, emulated kernels, CPU kernels, measured launch settings.
PARTS = ("cubin", "emulator", "numba", "tuning")
_PROBE = bytes(4096)  # an empty file could be made on a full disk

_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # else a child could inherit the lock as taken
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
_temporary: Path | None = None
_warned: set[Path] = set()


def writable_folder(part: str) -> Path:
    """Return the folder for one kind of files, made if needed and known to be writable.

    Parameters
    ----------
    part : str
        One of ``PARTS``.

    Returns
    -------
    Path
        ``config.cache_dir / part``, or that part of this process's temporary folder.

    Raises
    ------
    KernelCompileError
        If there is no place for temporary files either.

    Warns
    -----
    RuntimeWarning
        Once for a cache directory that cannot be written.
    """
    cache = get_config().cache_dir
    problem = writing_problem(cache / part)
    if problem is None:
        return cache / part
    try:
        folder = _temporary_folder() / part
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise KernelCompileError(
            f"compiled kernels can be kept neither in {cache} ({problem}) nor in a temporary "
            f"folder ({error}); set GNN_BACKEND_CACHE_DIR to a directory that can be written"
        ) from error
    if _first_time(cache):
        warnings.warn(
            f"the cache directory {cache} cannot be written ({problem}); compiled kernels are "
            "kept in a temporary folder, and every process compiles them anew. Set "
            "GNN_BACKEND_CACHE_DIR to a directory that you own.",
            RuntimeWarning,
            stacklevel=2,
        )
    return folder


def _first_time(cache: Path) -> bool:
    with _lock:
        new = cache not in _warned
        _warned.add(cache)
        return new


def writing_problem(folder: Path) -> str | None:
    """Make `folder` and write a file there; return what went wrong, or None."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(_PROBE)
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def _temporary_folder() -> Path:
    """This process's private folder; a forked child uses its parent's while that is there."""
    global _temporary
    with _lock:
        if _temporary is None or not _temporary.is_dir():
            _temporary = Path(tempfile.mkdtemp(prefix="gnn_backend-"))
            # Unlike atexit it also runs in children of multiprocessing, and not in forked copies.
            multiprocessing.util.Finalize(
                None, shutil.rmtree, (_temporary,), {"ignore_errors": True}, exitpriority=-100
            )
        return _temporary

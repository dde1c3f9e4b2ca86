"""Runs CUDA kernels on the host: g++ and fibers, for machines (and CI) without a GPU.

A translation unit is compiled once for each combination of its text, the text of every header in
``kernels/`` and the flags, into ``config.cache_dir/emulator``. See ``kernels/emulator/cuda_host.h``
for how the kernels run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from filelock import FileLock

from gnn_backend.config import get_config
from gnn_backend.errors import GNNBackendError, KernelCompileError, Unsupported, invalid

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
LANE_ORDERS = ("forward", "reversed", "random")
_ERROR_BYTES = 16384
_run_lock = threading.Lock()  # a library has one set of fibers


class EmulatorError(GNNBackendError, RuntimeError):
    """A kernel deadlocked, misused a warp primitive, or was launched with a wrong shape."""


def flags(sanitize: bool) -> list[str]:
    """Compiler flags of an emulated kernel library."""
    common = ["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing"]
    common += ["-ffp-contract=off", "-fno-math-errno", "-fno-exceptions", "-fno-threadsafe-statics"]
    common += ["-fmax-errors=5", "-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable"]
    if sanitize:
        checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        return [*common, *checks, "-O1", "-g", "-fno-omit-frame-pointer"]
    return [*common, "-O1"]


@functools.lru_cache(maxsize=1)
def headers_digest() -> str:
    """Hash of every header under ``kernels/``: an edit of any of them recompiles."""
    digest = hashlib.sha256()
    for path in sorted(p for p in KERNELS.rglob("*") if p.suffix in (".cuh", ".h")):
        digest.update(str(path.relative_to(KERNELS)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def find_compiler() -> str:
    """Return the path of the C++ compiler; raise ``Unsupported`` when there is none."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise Unsupported(
            "no-compiler", "the emulator needs g++ on the PATH; install it (apt install g++)"
        )
    return compiler


def _compile(source: str, target: Path, sanitize: bool) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unit = Path(folder) / f"{target.stem}.cpp"
        unit.write_text(source)
        output = Path(folder) / "library.so"
        includes = ["-I", str(KERNELS / "emulator"), "-I", str(KERNELS)]
        forced = ["-include", str(KERNELS / "emulator" / "cuda_host.h")]
        command = [find_compiler(), *flags(sanitize), *includes, *forced]
        command += [str(unit), "-o", str(output)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise KernelCompileError(
                f"g++ could not compile a kernel for the emulator ({' '.join(command)})",
                result.stderr,
            )
        os.replace(output, target)


@functools.lru_cache(maxsize=256)
def _load(source: str, sanitize: bool, cache_dir: Path) -> ctypes.CDLL:
    text = "\0".join([source, headers_digest(), *flags(sanitize)])
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    folder = cache_dir / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.so"
    if not target.exists():
        with FileLock(str(target) + ".lock"):
            if not target.exists():
                _compile(source, target, sanitize)
    return ctypes.CDLL(str(target))


def parse_lane_order(lane_order: str) -> tuple[int, int]:
    """Turn ``"forward"``, ``"reversed"``, ``"random"`` or ``"random:SEED"`` into two integers."""
    name, _, seed = lane_order.partition(":")
    if name not in LANE_ORDERS or (seed and (name != "random" or not seed.isdecimal())):
        expected = "forward, reversed, random or random:SEED"
        raise invalid("lane_order", "unknown order", repr(lane_order), expected)
    return LANE_ORDERS.index(name), int(seed or 0) & 0xFFFFFFFF


def launch(
    source: str,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: bytes,
    *,
    lane_order: str | None = None,
) -> None:
    """Run the kernel ``entry`` of the translation unit ``source``; returns when it has finished.

    Parameters
    ----------
    source : str
        CUDA C++ text; its ``#include`` lines are resolved in ``kernels/``.
    entry : str
        Name given to ``GNNB_ENTRY`` in ``source``.
    grid, block : tuple of int
        Blocks of the grid and threads of a block, along x, y and z.
    args : bytes
        The kernel's argument struct; its pointers are host addresses.
    lane_order : str, optional
        Order in which ready lanes run: ``forward``, ``reversed``, ``random`` or ``random:SEED``;
        ``config.emulator_lane_order`` if not given.

    Raises
    ------
    EmulatorError
        The kernel can never finish, misuses a warp primitive, or the launch has a wrong shape.
    KernelCompileError
        g++ rejects the source.
    Unsupported
        There is no C++ compiler.
    """
    config = get_config()
    order, seed = parse_lane_order(lane_order or config.emulator_lane_order)
    library = _load(source, config.emulator_sanitize, config.cache_dir)
    try:
        function = getattr(library, entry)
    except AttributeError:
        raise invalid("entry", "no such kernel", repr(entry), "a name given to GNNB_ENTRY") from None
    shape = ctypes.c_uint * 3
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    with _run_lock:
        status = function(
            args, len(args), shape(*grid), shape(*block), order, seed, error, _ERROR_BYTES
        )
    if status != 0:
        raise EmulatorError(error.value.decode(errors="replace"))

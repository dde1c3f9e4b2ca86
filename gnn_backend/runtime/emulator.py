"""Runs CUDA kernels on the host: g++ and fibers, for machines (and CI) without a GPU.

A translation unit is compiled once for each combination of its text, the text of every header in
``kernels/``, the compiler and the flags, into the cache (``cache.py``). The header that goes before
every unit, ``kernels/emulator/cuda_host.h``, is precompiled there. How the kernels run is described
in it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from gnn_backend.config import get_config
from gnn_backend.errors import GNNBackendError, KernelCompileError, Unsupported, invalid
from gnn_backend.runtime.cache import writable_folder

KERNELS = (Path(__file__).resolve().parent.parent / "kernels").resolve()
LANE_ORDERS = ("forward", "reversed", "random")

_ERROR_BYTES = 16384
# A library has one set of fibers, and fibers belong to the thread that runs them.
_run_lock = threading.Lock()

_FLAGS = (
    *("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffp-contract=off"),
    *("-fno-math-errno", "-fno-exceptions", "-fno-threadsafe-statics", "-fmax-errors=5", "-w"),
)
_PLAIN_FLAGS = ("-O1",)
# Unoptimised, no access is removed before it is checked, and it compiles five times faster.
_SANITIZER_FLAGS = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class EmulatorError(GNNBackendError, RuntimeError):
    """A kernel deadlocked, misused a warp primitive, or was launched with a wrong shape."""


class _Launch(ctypes.Structure):
    """``gnnb_emu::Launch`` of kernels/emulator/launch.h."""

    _fields_ = [
        ("args", ctypes.c_char_p),
        ("error", ctypes.c_char_p),
        ("error_bytes", ctypes.c_int),
        ("args_bytes", ctypes.c_int),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("lane_order", ctypes.c_int),
        ("seed", ctypes.c_uint),
    ]


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".cuh", ".h")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def headers_digest() -> str:
    """Hash of every header under ``kernels/``: an edit of any of them recompiles."""
    return _digest(KERNELS)


def find_compiler() -> str:
    """Return the path of the C++ compiler.

    Raises
    ------
    Unsupported
        Neither ``g++`` nor ``c++`` is on the PATH.
    """
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise Unsupported(
            "no-compiler",
            "the emulator compiles kernels with g++, which is not on the PATH; install it "
            "(for instance: apt install g++)",
        )
    return compiler


@functools.lru_cache(maxsize=8)
def _compiler_version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


# One declaration: `extern __shared__ T a[];` or `__shared__ T a, b[2];`.
_SHARED = re.compile(r"\b(extern\s+|static\s+)?__shared__\s+([^;]*);")
_ALIGNMENT = re.compile(r"\balignas\s*\(((?:[^()]|\([^()]*\))*)\)\s*")
_DECLARATOR = re.compile(r"(?P<type>.*?)(?P<name>\b[A-Za-z_]\w*)\s*(?P<extents>(\[.*\])?)$", re.S)


def _split_declarators(text: str) -> list[str]:
    """Split at the commas outside every bracket."""
    parts, depth, angle, start = [], 0, 0, 0
    for i, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char in "<>" and depth == 0:
            angle += 1 if char == "<" else -1
        elif char == "," and depth == 0 and angle == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _rewrite_declaration(match: re.Match[str]) -> str:
    is_extern = (match[1] or "").startswith("extern")
    alignment = _ALIGNMENT.search(match[2])
    first, *others = _split_declarators(_ALIGNMENT.sub("", match[2]))
    out, base = "", ""
    for part in (first, *others):
        found = _DECLARATOR.match(f"{base} {part.strip()}")
        if found is None or not found["type"].strip() or "=" in part:
            raise KernelCompileError(
                f"cannot read the declaration `{match[0]}`; write `__shared__ TYPE NAME[SIZE];`, "
                "without an initialiser"
            )
        base, name, extents = found["type"].strip(), found["name"], found["extents"]
        if is_extern:
            out += f"auto& {name} = ::gnnb_emu::dynamic_shared<{base} {extents}>();"
            continue
        template = f"{base} {extents}" + (f", ({alignment[1]})" if alignment else "")
        out += f"static ::gnnb_emu::Shared<{template}> {name}_storage;"
        out += f"auto& {name} = {name}_storage.get();"
    return out + "\n" * match[0].count("\n")


def rewrite_shared(text: str) -> str:
    """Turn the ``__shared__`` declarations of preprocessed source into ``gnnb_emu::Shared``."""
    return _SHARED.sub(_rewrite_declaration, text)


def _run_compiler(command: list[str]) -> str:
    # A sanitizer that is preloaded for the kernels would only slow the compiler down.
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise KernelCompileError(
            f"a kernel does not compile for the emulator ({' '.join(command)})", result.stderr
        )
    return result.stdout


def _precompiled_host(compiler: str, flags: tuple[str, ...], cache: Path) -> Path | None:
    """``cuda_host.h`` beside its precompiled form, or None where the compiler makes none of use.

    Reading it and the system's headers takes most of the time of a unit with one small kernel. The
    headers are copied, so that what was precompiled and what is named by its hash never differ.
    """
    source = KERNELS / "emulator"
    key = "\0".join([_digest(source), platform.machine(), _compiler_version(compiler), *flags])
    folder = cache / f"host-{hashlib.sha256(key.encode()).hexdigest()[:32]}"
    header = folder / "cuda_host.h"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as name:
                made = Path(name) / "host"
                shutil.copytree(source, made)
                target = made / "cuda_host.h.gch"
                command = [compiler, *flags, "-x", "c++-header", str(made / "cuda_host.h")]
                try:
                    _run_compiler([*command, "-o", str(target)])
                except KernelCompileError:
                    target.unlink(missing_ok=True)  # what is wrong shows when a unit is compiled
                made.replace(folder)
    return header if header.with_suffix(".h.gch").exists() else None


def _compile(source: str, target: Path, flags: tuple[str, ...]) -> None:
    compiler = find_compiler()
    # Stays next to the library: error messages name its lines.
    unit = target.with_suffix(".cpp")
    unit.write_text(source)
    host = _precompiled_host(compiler, flags, target.parent)
    if host is not None:
        try:
            _compile_unit(compiler, unit, target, flags, host)
            return
        except KernelCompileError:
            pass  # told again, in terms of the headers in `kernels/`, if it is not precompilation
    _compile_unit(compiler, unit, target, flags, None)


def _compile_unit(
    compiler: str, unit: Path, target: Path, flags: tuple[str, ...], host: Path | None
) -> None:
    """Compile ``unit`` into the library ``target``; ``host``: a header that is precompiled."""
    include = ["-I", str(KERNELS), "-include", str(host or KERNELS / "emulator" / "cuda_host.h")]
    if host is not None:
        include.append("-fpch-preprocess")  # leaves a mark in the text instead of the header's text
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        text = _run_compiler([compiler, *flags, *include, "-E", str(unit)])
        preprocessed = Path(folder) / "kernel.ii"
        preprocessed.write_text(rewrite_shared(text))
        library = Path(folder) / "kernel.so"
        _run_compiler([compiler, *flags, "-shared", str(preprocessed), "-o", str(library)])
        library.replace(target)


@functools.lru_cache(maxsize=256)
def _load(source: str, sanitize: bool, cache_dir: Path) -> ctypes.CDLL:
    flags = (*_FLAGS, *(_SANITIZER_FLAGS if sanitize else _PLAIN_FLAGS))
    version = _compiler_version(find_compiler())
    key = "\0".join([source, headers_digest(), platform.machine(), version, *flags])
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    target = cache_dir / "emulator" / name
    if not target.exists():
        target = writable_folder("emulator") / name
        with FileLock(f"{target}.lock"):
            if not target.exists():
                _compile(source, target, flags)
    return ctypes.CDLL(str(target))


def _function(library: ctypes.CDLL, entry: str) -> Callable[..., Any]:
    try:
        function = getattr(library, entry)
    except AttributeError:
        expected = "a name given to GNNB_ENTRY in the source"
        raise invalid("entry", "no such kernel", repr(entry), expected) from None
    function.argtypes = [ctypes.POINTER(_Launch)]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def parse_lane_order(lane_order: str) -> tuple[int, int]:
    """Turn ``forward``, ``reversed``, ``random`` or ``random:SEED`` into an index and a seed."""
    name, _, seed = lane_order.partition(":")
    if name not in LANE_ORDERS or (seed and (name != "random" or not seed.isdecimal())):
        expected = "forward, reversed, random or random:SEED"
        raise invalid("lane_order", "unknown order", repr(lane_order), expected)
    return LANE_ORDERS.index(name), int(seed or 0) & 0xFFFFFFFF


def _triple(argument: str, value: tuple[int, int, int]) -> ctypes.Array[ctypes.c_uint]:
    if len(value) != 3 or not all(0 < n < 2**31 for n in value):
        raise invalid(argument, "wrong shape", value, "three positive integers (x, y, z)")
    return (ctypes.c_uint * 3)(*value)


def launch(
    source: str,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: bytes,
    *,
    lane_order: str | None = None,
    shared_bytes: int = 0,
) -> None:
    """Run the kernel ``entry`` of the translation unit ``source``; return when it has finished.

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
        by default ``config.emulator_lane_order``.
    shared_bytes : int
        Bytes of dynamic shared memory (``extern __shared__``).

    Raises
    ------
    InvalidArgument
        ``entry``, ``grid``, ``block`` or ``lane_order`` is wrong.
    EmulatorError
        The kernel can never finish, misuses a warp primitive, or does not take this launch.
    KernelCompileError
        The compiler rejects the source.
    Unsupported
        There is no C++ compiler.
    """
    config = get_config()
    order, seed = parse_lane_order(lane_order or config.emulator_lane_order)
    grid_shape, block_shape = _triple("grid", grid), _triple("block", block)
    function = _function(_load(source, config.emulator_sanitize, config.cache_dir), entry)
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    request = _Launch(
        args=args,
        error=ctypes.cast(error, ctypes.c_char_p),
        error_bytes=_ERROR_BYTES,
        args_bytes=len(args),
        grid=grid_shape,
        block=block_shape,
        shared_bytes=shared_bytes,
        lane_order=order,
        seed=seed,
    )
    with _run_lock:
        status = function(ctypes.byref(request))
    if status != 0:
        raise EmulatorError(error.value.decode(errors="replace"))

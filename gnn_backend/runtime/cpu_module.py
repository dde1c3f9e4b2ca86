"""Numba modules: composed of templates and a functor, kept in files named by their source.

Numba's disk cache never hits for a functor that is passed as an argument, and is stale after an
edit of one that is imported. So the text of the templates and of the functor goes into one file
whose name holds the hash of all that decides its meaning; a file is never changed once written.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from filelock import FileLock

from gnn_backend.config import config
from gnn_backend.errors import KernelCompileError
from gnn_backend.runtime import cpu_vector
from gnn_backend.runtime.numba_templates import common

TEMPLATES = Path(common.__file__).parent
SOFTMAX = (
    "common.py",
    "FUNCTOR",
    "softmax_logits.py",
    "softmax_stats.py",
    "softmax_forward.py",
    "softmax_backward_dst.py",
    "softmax_backward_src.py",
)

_lock = threading.RLock()
_modules: dict[tuple[str, Path, bool], ModuleType] = {}
_compiled: set[tuple[str, Any]] = set()


def functor_path(name: str) -> Path:
    """File with the Numba source of a functor."""
    return TEMPLATES / f"{name}.py"


def _without_template_imports(text: str) -> str:
    """Drop the imports between templates: composed, their names are in the same module."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "gnn_backend.runtime.numba_templates"
        ):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "".join(lines)


def compose(functor: Path, parallel: bool = True, templates: tuple[str, ...] = SOFTMAX) -> str:
    """The text of the module of a traversal for one functor."""
    parts = [functor if t == "FUNCTOR" else TEMPLATES / t for t in templates]
    texts = [_without_template_imports(part.read_text()) for part in parts]
    texts[0] = texts[0].replace("PARALLEL = True", f"PARALLEL = {parallel}")
    return "\n\n".join(texts)


def _write_once(text: str, stem: str) -> Path:
    vector = Path(cpu_vector.__file__).read_text()
    meaning = f"{text}\n{vector}\n{cpu_vector.VECTOR_BYTES}"
    digest = hashlib.sha256(meaning.encode()).hexdigest()[:16]
    folder = config.cache_dir / "numba"
    path = folder / f"{stem}_{digest}.py"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(str(folder / "write.lock")):
            if not path.exists():
                handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
                with os.fdopen(handle, "w") as file:
                    file.write(text)
                Path(temporary).replace(path)
    except OSError as error:
        raise KernelCompileError(
            f"cannot keep compiled CPU kernels in {folder}: {error}; "
            "set GNN_BACKEND_CACHE_DIR to a folder that can be written"
        ) from error
    return path


def load(functor: Path, parallel: bool = True) -> ModuleType:
    """Import the softmax traversal of a functor, writing its file first where it is missing.

    Parameters
    ----------
    functor : Path
        File with the functor's Numba source, see ``functor_path``.
    parallel : bool
        Whether blocks run on several threads.

    Raises
    ------
    KernelCompileError
        The cache folder cannot be written.
    """
    key = (str(functor), config.cache_dir, parallel)
    module = _modules.get(key)
    if module is None:
        with _lock:
            path = _write_once(compose(functor, parallel), f"softmax_{functor.stem}")
            name = f"gnn_backend_{path.stem}"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            _modules[key] = module
    return module


def ensure_compiled(kernel: Any, args: tuple[Any, ...]) -> None:
    """Compile a kernel for these arguments, or load it from disk; one process at a time.

    Raises
    ------
    KernelCompileError
        The kernel does not compile; Numba's message is in ``log``.
    """
    types = tuple(numba.typeof(a) for a in args)
    key = (kernel.py_func.__module__ + kernel.py_func.__name__, types)
    if key in _compiled:
        return
    with _lock, FileLock(str(Path(kernel.py_func.__code__.co_filename).with_suffix(".lock"))):
        try:
            kernel.compile(types)
        except numba.errors.NumbaError as error:
            raise KernelCompileError(
                f"the CPU kernel {kernel.py_func.__name__} does not compile", str(error)
            ) from error
        _compiled.add(key)

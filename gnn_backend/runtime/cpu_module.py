"""Numba modules: composed of templates and a functor, kept in files named by their source.

Numba's disk cache never hits for a functor that is passed as an argument, and is stale after an
edit of one that is imported. So the text of the templates and of the functor goes into one file
whose name holds the hash of all that decides its meaning; a file is never changed once written.
Kernels are C functions (block, address of the arguments): a kernel is compiled once, without the
threads around it, and one tiny parallel loop (``launch.py``) serves them all.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import torch
from filelock import FileLock
from numba import types

from gnn_backend.config import config
from gnn_backend.errors import KernelCompileError, invalid
from gnn_backend.runtime import cpu_memory, cpu_random, cpu_vector
from gnn_backend.runtime.cache import writable_folder

TEMPLATES = Path(__file__).parent / "numba_templates"
FUNCTOR = "functor"
SOFTMAX = (
    "common.py",
    FUNCTOR,
    "softmax_edges.py",
    "softmax_logits.py",
    "softmax_slopes.py",
    "softmax_stats.py",
    "softmax_forward.py",
    "softmax_weights.py",
    "softmax_sums.py",
    "softmax_backward_dst.py",
    "softmax_backward_src.py",
)
AGGREGATE = (
    "common.py",
    FUNCTOR,
    "aggregate_arguments.py",
    "aggregate_extremes.py",
    "aggregate_forward.py",
    "aggregate_backward.py",
    "aggregate_winners.py",
)
OPTIONAL = (  # arguments that a kernel is compiled with or without
    "edge", "edge_bias", "edge_features", "edge_query", "key_term", "query_term",
    "out_edge", "grad_out_edge", "attention", "grad_attention", "dropout",
    "grad_query", "grad_param", "grad_key", "grad_value",
    "grad_edge", "grad_edge_bias", "grad_edge_features", "grad_edge_query",
    "grad_key_term", "grad_query_term",
)  # fmt: skip
AGGREGATE_OPTIONAL = (
    "temperature", "edge_numbers", "edge_rows",
    "sum", "square", "max", "min", "mul", "softmax",
    "max_ties", "min_ties", "max_first", "min_first", "mul_rest", "softmax_lse",
    "grad_sum", "grad_square", "grad_max", "grad_min", "grad_mul", "grad_softmax",
    "grad_x", "grad_edge_numbers", "grad_edge_rows", "grad_temperature",
)  # fmt: skip
_LIBRARIES = cpu_memory, cpu_random, cpu_vector
_NAMES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
}
_ROUNDED = {torch.float16: "to_half", torch.bfloat16: "to_bfloat"}
_VARIANT = re.compile(r"# variant: .*?# end of variant\n", re.DOTALL)

_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # else a child could inherit the locks of a compilation
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
_modules: dict[tuple[Any, Path], ModuleType] = {}
_kernels: dict[tuple[str, str], Any] = {}  # they own the machine code
_functions: dict[tuple[str, str, tuple[Any, ...]], Any] = {}


@dataclass(frozen=True)
class Variant:
    """What is fixed when a traversal is compiled.

    Attributes
    ----------
    real : torch.dtype
        What is computed in: float32 or float64.
    offset : torch.dtype
        Of ``indptr``: int32 or int64.
    wide : int
        Vector registers of a wide tile of features: 1, 2 or 4.
    given : frozenset of str
        Which of the ``OPTIONAL`` arguments are read or written.
    edge_id : torch.dtype, optional
        Of the caller's edge numbers; None where they are the positions or are not asked for.
    row_ids : bool
        Rows are laid out in another order than by number.
    """

    real: torch.dtype
    offset: torch.dtype
    wide: int
    given: frozenset[str] = frozenset()
    edge_id: torch.dtype | None = None
    row_ids: bool = False

    def text(self) -> str:
        """The lines of ``common.py`` that this variant replaces."""
        real, offset = _NAMES[self.real], _NAMES[self.offset]
        lines = [f"REAL = types.{real}", f"OFFSET = types.{offset}", f"WIDE = {self.wide}"]
        edge_id = None if self.edge_id is None else f"types.{_NAMES[self.edge_id]}"
        lines += [f"EDGE_ID = {edge_id}", f"ROW_ID = {'types.int32' if self.row_ids else None}"]
        lines += [f"{n.upper()} = {'REAL' if n in self.given else None}" for n in OPTIONAL]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class AggregateVariant:
    """What is fixed when an aggregation is compiled.

    Attributes
    ----------
    real, offset, wide, edge_id, row_ids
        As in :class:`Variant`.
    given : frozenset of str
        Which of the ``AGGREGATE_OPTIONAL`` arguments are read or written.
    nan_wins : bool
        A NaN is larger and smaller than every number; else it never is.
    compared : torch.dtype
        What messages are rounded to where the largest is sought.
    """

    real: torch.dtype
    offset: torch.dtype
    wide: int
    given: frozenset[str]
    edge_id: torch.dtype | None
    nan_wins: bool
    compared: torch.dtype
    row_ids: bool = False

    def text(self) -> str:
        """The lines of ``common.py`` and ``aggregate_arguments.py`` that this variant replaces."""
        real, offset = _NAMES[self.real], _NAMES[self.offset]
        edge_id = None if self.edge_id is None else f"types.{_NAMES[self.edge_id]}"
        lines = [f"REAL = types.{real}", f"OFFSET = types.{offset}", f"WIDE = {self.wide}"]
        lines += [f"EDGE_ID = {edge_id}", f"ROW_ID = {'types.int32' if self.row_ids else None}"]
        lines.append(f"NAN_WINS = {self.nan_wins}")
        rounding = _ROUNDED.get(self.compared, "as_is")
        lines.append(f"from {cpu_vector.__name__} import {rounding} as compared")
        for name in AGGREGATE_OPTIONAL:
            token = "OFFSET" if name.endswith("_first") else "REAL"
            lines.append(f"{name.upper()} = {token if name in self.given else None}")
        return "\n".join(lines) + "\n"


def functor_path(name: str) -> Path:
    """File with the Numba source of a functor.

    Raises
    ------
    InvalidArgument
        There is none for this name.
    """
    path = TEMPLATES / f"{name}.py"
    if not path.exists():
        raise invalid("functor", "no Numba source", name, f"the name of a file in {TEMPLATES}")
    return path


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


def compose(
    functor: Path, variant: Variant | AggregateVariant, templates: tuple[str, ...] = SOFTMAX
) -> str:
    """The text of the module of a traversal for one functor."""
    parts = [functor if name == FUNCTOR else TEMPLATES / name for name in templates]
    texts = [_without_template_imports(part.read_text(encoding="utf-8")) for part in parts]
    return _VARIANT.sub(variant.text(), "\n\n".join(texts))


def module_name(text: str, stem: str) -> str:
    """Name of the file of a module, with the hash of all that decides its meaning.

    Parameters
    ----------
    text : str
    stem : str
        What the name begins with.
    """
    libraries = [Path(m.__file__ or "").read_text() for m in _LIBRARIES]
    meaning = "\n".join([text, *libraries, str(cpu_vector.VECTOR_BYTES)])
    return f"{stem}_{hashlib.sha256(meaning.encode()).hexdigest()[:16]}"


def _write_once(text: str, stem: str) -> Path:
    folder = writable_folder("numba")  # even a file that is there: its machine code lies beside it
    path = folder / f"{module_name(text, stem)}.py"
    if path.exists():
        return path
    with FileLock(str(folder / "write.lock")):
        if not path.exists():
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(path)
    return path


def _import(text: str, stem: str, key: Any) -> ModuleType:
    path = _write_once(text, stem)
    name = f"gnn_backend_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    _modules[key, config.cache_dir] = module
    return module


def softmax_module(functor: Path, variant: Variant) -> ModuleType:
    """Import the softmax traversal of a functor, writing its file first where it is missing.

    Raises
    ------
    KernelCompileError
        There is no folder to write to.
    """
    return _composed(functor, variant, SOFTMAX, f"softmax_{functor.stem}")


def aggregate_module(message: Path, variant: AggregateVariant) -> ModuleType:
    """Import the aggregation of a kind of messages, as ``softmax_module`` does.

    Raises
    ------
    KernelCompileError
        There is no folder to write to.
    """
    return _composed(message, variant, AGGREGATE, f"aggregate_{message.stem}")


def generated_module(stem: str, key: Any, text: Callable[[], str]) -> ModuleType:
    """Import a module that is generated, writing its file first where it is missing.

    Parameters
    ----------
    stem : str
        What its file's name begins with.
    key : hashable
        What the text follows from.
    text : callable
        Gives it where the module is not there yet.

    Raises
    ------
    KernelCompileError
        There is no folder to write to.
    """
    module = _modules.get((key, config.cache_dir))
    if module is None:
        with _lock:
            module = _import(text(), stem, key)
    return module


def _composed(
    functor: Path, variant: Variant | AggregateVariant, templates: tuple[str, ...], stem: str
) -> ModuleType:
    key = (str(functor), variant)
    module = _modules.get((key, config.cache_dir))
    if module is None:
        with _lock:
            module = _import(compose(functor, variant, templates), stem, key)
    return module


def kernel_address(module: ModuleType, name: str) -> int:
    """Address of a kernel of a module: loaded from disk, or compiled; one process at a time.

    Raises
    ------
    KernelCompileError
        The kernel does not compile; Numba's message is in ``log``.
    """
    key = (module.__name__, name)
    kernel = _kernels.get(key)
    if kernel is None:
        signature = types.void(types.int64, types.int64)
        options = {"cache": True, "nopython": True, **module.OPTIONS}
        function = getattr(module, name)
        with _lock, _one_process(module):
            kernel = _compile(name, lambda: numba.cfunc(signature, **options)(function))
        _kernels[key] = kernel
    return int(kernel.address or 0)


def compiled(stem: str, name: str, signature: tuple[Any, ...]) -> Any:
    """Return a function of a template that stands alone, ready for arguments of these types.

    Left to its first call, Numba would compile it where it likes: unlocked, so that two processes
    can give two signatures one file of machine code, and on the caller's stack.

    Raises
    ------
    KernelCompileError
        The function does not compile, or there is no folder to write to.
    """
    key = (stem, name, signature)
    function = _functions.get(key)
    if function is None:
        with _lock:
            module = _modules.get((stem, config.cache_dir))
            if module is None:
                module = _import((TEMPLATES / f"{stem}.py").read_text("utf-8"), stem, stem)
            function = getattr(module, name)
            with _one_process(module):
                _compile(name, lambda: function.compile(signature))
        _functions[key] = function
    return function


def run_blocks(parallel: bool) -> Any:
    """The compiled loop over blocks: (kernel address, number of blocks, arguments' address)."""
    name = "run_parallel" if parallel else "run_serial"
    return compiled("launch", name, (types.int64,) * 3)


def _one_process(module: ModuleType) -> FileLock:
    return FileLock(str(Path(module.__file__ or "").with_suffix(".lock")))


def _compile(name: str, work: Callable[[], Any]) -> Any:
    """Run a compilation in a thread of its own, and return its result.

    Numba leaves exceptions behind in reference cycles, and an exception holds the frames that
    called it. On the caller's thread these would be the user's: the tensors of the first steps
    would stay in memory until the next garbage collection.
    """
    done: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="gnn_backend-compile")
    thread.start()
    thread.join()
    if errors and isinstance(errors[0], numba.errors.NumbaError):
        raise KernelCompileError(f"the CPU kernel {name} does not compile", str(errors[0]))
    if errors:
        raise errors.pop()  # popped, or this frame and the exception would hold each other
    return done[0]

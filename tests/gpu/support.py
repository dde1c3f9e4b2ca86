"""What the GPU tests share. They need torch and CuPy; pytest, Numba and the hosts may be missing.

With pytest the tables become parameters and the tests are marked ``gpu``; without it
``python -m tests.gpu`` runs them (see ``__main__``).
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.runtime import selection
from gnn_backend.runtime.compile import cubin, target_for
from gnn_backend.runtime.instances import merge_unit, softmax_unit
from tests.ops.support import TABLE

try:
    import pytest
except ImportError:
    pytest = None

DEVICE = "cuda"
GIB = 1 << 30
SHAPES = [(2, 64), (3, 7)]


class Skipped(Exception):
    """A test that cannot run here, with the reason."""


def missing() -> str:
    """Why no test can run here, or an empty text."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    if importlib.util.find_spec("cupy") is None:
        return "no CuPy"
    return ""


MARKS = [] if pytest is None else [
    pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing() or "-")
]  # fmt: skip


def table(names: str, rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test once a row, with the row's values under these names."""
    rows = list(rows)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        if pytest is not None:
            test = pytest.mark.parametrize(names, rows)(test)
        tables = [*getattr(test, "tables", []), ([n.strip() for n in names.split(",")], rows)]
        test.tables = tables
        return test

    return decorate


def skip(reason: str) -> None:
    if pytest is not None:
        pytest.skip(reason)
    raise Skipped(reason)


def needs_memory(bytes_needed: int) -> None:
    """Skip where the device has less free memory."""
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    if free < bytes_needed:
        skip(f"{free / GIB:.0f} GiB free, {bytes_needed / GIB:.0f} GiB needed")


def raises(kind: type[BaseException], call: Callable[[], object], text: str = "") -> Any:
    """Assert that the call raises ``kind`` with ``text`` in its message; return the error."""
    try:
        call()
    except kind as error:
        assert text in str(error), f"{error!r} does not say {text!r}"
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def chunks_of(length: int) -> AbstractContextManager[Any]:
    """Cut rows of graphs made inside into chunks of so many neighbours."""
    return mock.patch.object(selection, "chunk_for", lambda *_: length)


@functools.lru_cache(maxsize=1)
def compile_table() -> None:
    """Compile what the table of shapes needs, on all cores, before anything waits for one."""
    functor = FUNCTORS["gatv2"]
    units = {merge_unit(name) for name in selection.DTYPE_NAMES.values()}
    for heads, dim, dtype, _ in TABLE:
        name = selection.DTYPE_NAMES[dtype]
        shape = selection.shape_for(name, heads, dim)
        units.add(softmax_unit(functor.cuda_type, functor.cuda_header, name, shape))
    arch = target_for(torch.cuda.get_device_capability())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda unit: cubin(unit, arch), units))

"""CUDA launches: cubins loaded once a device through CuPy, launched on torch's current stream."""

from __future__ import annotations

import ctypes
import threading
from functools import lru_cache
from typing import Any

import torch

from gnn_backend.errors import Unsupported
from gnn_backend.profile import count_launch
from gnn_backend.runtime.compile import cubin, target_for
from gnn_backend.runtime.instances import Unit

_functions: dict[tuple[int, str, str], Any] = {}
_lock = threading.Lock()
_thread = threading.local()
_ARGUMENT_BYTES = 512  # of the buffer that a thread's launches share


@lru_cache(maxsize=64)
def multiprocessors(device: int) -> int:
    """Number of multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        from cupy_backends.cuda.api import driver
    except ImportError as error:
        raise Unsupported("no-cupy", str(error)) from None
    return driver


@lru_cache(maxsize=1)
def _runtime() -> Any:
    try:
        from cupy_backends.cuda.api import runtime
    except ImportError as error:
        raise Unsupported("no-cupy", str(error)) from None
    return runtime


def available() -> bool:
    """Whether CuPy is installed (a GPU may still be missing)."""
    try:
        _driver()
    except Unsupported:
        return False
    return True


def function(device: int, unit: Unit, entry: str) -> Any:
    """The loaded kernel ``entry`` on ``device``, compiled and loaded on first use."""
    found = _functions.get((device, unit.key, entry))
    if found is None:
        with _lock, torch.cuda.device(device):
            found = _functions.get((device, unit.key, entry))
            if found is None:
                _load(device, unit)
                found = _functions[device, unit.key, entry]
    return found


def _load(device: int, unit: Unit) -> None:
    try:
        from cupy.cuda.function import Module
    except ImportError as error:
        raise Unsupported("no-cupy", str(error)) from None
    torch.cuda.current_stream(device)  # torch's context is current before anything is loaded
    module = Module()
    module.load(cubin(unit, target_for(torch.cuda.get_device_capability(device))))
    for entry in unit.entries:
        _functions[device, unit.key, entry] = module.get_function(entry)


def _enter_context(device: int) -> None:
    """Make the device's context current in this thread, once a thread.

    Autograd runs backward passes in threads of its own, where the driver has no context until
    the first runtime call.
    """
    entered = _thread.__dict__.setdefault("entered", set())
    if device not in entered:
        runtime = _runtime()
        current = torch.cuda.current_device()
        runtime.setDevice(device)
        if current != device:
            runtime.setDevice(current)
        entered.add(device)


def _parameters(args: bytes) -> int:
    """Address of a kernel's parameter array whose one struct is ``args``.

    The driver copies the struct during the launch, so a thread has one buffer for all.
    """
    held = _thread.__dict__.get("parameters")
    if held is None or held[0] < len(args):
        buffer = ctypes.create_string_buffer(max(len(args), _ARGUMENT_BYTES))
        start = ctypes.addressof(buffer)
        array = (ctypes.c_void_p * 1)(start)
        held = _thread.parameters = len(buffer), start, ctypes.addressof(array), buffer, array
    ctypes.memmove(held[1], args, len(args))
    return held[2]


def launch(
    unit: Unit,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    args: bytes,
    device: int,
) -> None:
    """Launch ``entry`` with one struct argument on the current stream of ``device``.

    Nothing is copied to or from the device, so a launch can be captured in a CUDA graph (once the
    kernel is loaded).
    """
    _enter_context(device)  # first: loading a kernel needs the context as well
    kernel = function(device, unit, entry)
    stream = torch._C._cuda_getCurrentRawStream(device)
    call = (kernel.ptr, *grid, *block, 0, stream, _parameters(args), 0)
    if torch.cuda.current_device() == device:
        _driver().launchKernel(*call)
    else:
        with torch.cuda.device(device):
            _driver().launchKernel(*call)
    count_launch("cuda", entry)

"""Uploads from page-locked memory, and their order among CUDA streams."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
from typing import Any

import torch
from torch import Tensor

_CHUNK = 4 << 20
"""Bytes copied at a time. Page-locking takes longer than copying: the buffers of one size are found
again in torch's cache by graphs of any size, and the first piece is on its way early."""


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to the device through page-locked memory, without waiting for the device.

    A long one goes in pieces, of which one is copied on the CPU while the other one travels.
    """
    if device.type != "cuda":
        return tensor.to(device)
    leave_garbage_to_the_parent()
    if tensor.is_pinned() or tensor.numel() == 0:
        return tensor.to(device, non_blocking=True)
    out = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    size = max(1, _CHUNK // tensor.element_size())
    if tensor.numel() <= size:
        return out.copy_(tensor.pin_memory(), non_blocking=True)
    with torch.cuda.device(device):
        buffers = [torch.empty(size, dtype=tensor.dtype, pin_memory=True) for _ in range(2)]
        sent = [torch.cuda.Event() for _ in buffers]
        for number, begin in enumerate(range(0, tensor.numel(), size)):
            piece = tensor[begin : begin + size]
            turn = number % 2
            sent[turn].synchronize()  # of an event that was never recorded: no wait
            buffer = buffers[turn][: piece.numel()]
            buffer.copy_(piece)
            out[begin : begin + piece.numel()].copy_(buffer, non_blocking=True)
            sent[turn].record()
    return out


def current(context: Any) -> ctypes.c_void_p:
    """Torch's current stream on the CUDA device of a DGL context, as DGL hands streams around."""
    return ctypes.c_void_p(torch.cuda.current_stream(context.device_id).cuda_stream)


def stream_of(handle: Any, device: torch.device) -> torch.cuda.Stream:
    """Torch's stream of a handle of DGL's.

    The default stream has no address, for which ``ExternalStream`` would make another stream.
    """
    if not handle.value:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle.value, device=device)


@functools.cache
def leave_garbage_to_the_parent() -> None:
    """Keep forked processes, such as loaders' workers, from collecting what was garbage before.

    Memory that several streams have used cannot be freed in a process without their CUDA context:
    PyTorch ends the process.
    """
    os.register_at_fork(after_in_child=gc.freeze)


class Ready:
    """Orders what was made on one CUDA stream before its use on another; nothing on the CPU."""

    __slots__ = ("_event", "_held", "_seen", "_stream", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._event: torch.cuda.Event | None = None
        self._stream = 0
        self._seen: set[int] = set()
        self._held: list[Tensor] = []

    def made(self, *tensors: Tensor) -> None:
        """Note that tensors were made on the current stream."""
        if self.device.type != "cuda":
            return
        stream = torch.cuda.current_stream(self.device)
        if self._event is not None and stream.cuda_stream != self._stream:
            stream.wait_event(self._event)  # so that the one event stands for all of them
        self._stream = stream.cuda_stream
        self._seen.clear()
        self._held += tensors
        self._event = torch.cuda.Event()
        self._event.record(stream)

    def wait(self) -> None:
        """Let the current stream wait, if it is another one; the host does not."""
        if self._event is None:
            return
        stream = torch.cuda.current_stream(self.device)
        if stream.cuda_stream != self._stream and stream.cuda_stream not in self._seen:
            stream.wait_event(self._event)
            for tensor in self._held:  # else their memory could be given away while still read
                tensor.record_stream(stream)
            self._seen.add(stream.cuda_stream)

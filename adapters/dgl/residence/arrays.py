"""Arrays on the device, in the form in which DGL's Python code hands arrays to packed functions.

A :class:`DeviceArray` holds a tensor and no memory of C++. Where one gets into C++ by a way other
than the boundary, DGL refuses its type with a DGLError; no device pointer is ever read there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from dgl import ndarray as nd
from torch import Tensor

from gnn_backend.adapters.dgl.residence import boundary
from gnn_backend.adapters.dgl.residence.streams import stream_of
from gnn_backend.adapters.dgl.residence.support import device_of
from gnn_backend.bindings import stock

# Not ``from dgl.backend.pytorch import tensor``, which is a function of this name.
_tensors = importlib.import_module("dgl.backend.pytorch.tensor")
_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)}  # fmt: skip


class DeviceArray(nd.NDArray):
    """A tensor on the device where DGL expects an NDArray.

    Attributes
    ----------
    tensor : Tensor
    written : bool
        Whether C++ was given it to write into.
    """

    def __init__(self, tensor: Tensor, written: bool = False) -> None:
        super().__init__(None, True)  # no handle, and nothing to free
        self.tensor = tensor
        self.written = written
        boundary.activate()

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        return _NAMES[self.tensor.dtype]

    @property
    def ctx(self) -> Any:
        return context_of(self.tensor.device)

    context = ctx

    def __len__(self) -> int:
        return self.tensor.numel()

    def __hash__(self) -> int:
        return id(self)

    def same_as(self, other: object) -> bool:
        return self is other

    def __getitem__(self, item: Any) -> Any:
        return self.tensor[item]

    def __repr__(self) -> str:
        return f"DeviceArray({self.tensor!r})"

    __str__ = __repr__

    def asnumpy(self) -> Any:
        return self.tensor.cpu().numpy()

    numpy = asnumpy

    def to_dlpack(self, alignment: int = 0) -> Any:
        return torch.utils.dlpack.to_dlpack(self.tensor)

    def copyto(self, target: Any) -> Any:
        if isinstance(target, DeviceArray):
            target.tensor.copy_(self.tensor)
            return target
        if isinstance(target, nd.DGLContext):
            if target == self.ctx:
                return DeviceArray(self.tensor.clone())
            device = device_of(target)
            return to_host(self) if device is None else DeviceArray(self.tensor.to(device))
        return to_host(self).copyto(target)

    def copyfrom(self, source: Any) -> DeviceArray:
        if isinstance(source, DeviceArray):
            self.tensor.copy_(source.tensor)
        else:
            source = source.asnumpy() if isinstance(source, nd.NDArray) else source
            self.tensor.copy_(torch.as_tensor(source, dtype=self.tensor.dtype))
        return self

    def pin_memory_(self) -> None:
        raise TypeError("an array on the device cannot be page-locked; got one on "
                        f"{self.device}, expected one on the CPU")  # fmt: skip

    def unpin_memory_(self) -> None:
        """Nothing to do: it is never page-locked."""

    def record_stream(self, stream: Any) -> None:
        self.tensor.record_stream(stream_of(stream, self.device))

    def write_back(self, host: Any) -> None:
        """Take over what C++ wrote into the copy ``host``."""
        written = memory_of(host)
        if self.tensor.dtype == torch.bool:
            written = written.bool()
        self.tensor.copy_(written.view(self.tensor.shape))


def context_of(device: torch.device) -> Any:
    """DGL's context of a device."""
    return nd.gpu(device.index or 0) if device.type == "cuda" else nd.cpu(0)


def _stock(name: str) -> Callable[..., Any]:
    return stock(getattr(_tensors, name))


def to_array(tensor: Tensor, written: bool = False) -> DeviceArray:
    """Wrap a tensor of the device for a packed function; a mask becomes bytes, as in DGL."""
    tensor = tensor.detach()
    if not written:
        tensor = tensor.byte() if tensor.dtype == torch.bool else tensor.contiguous()
    return DeviceArray(tensor, written)


def to_host(array: DeviceArray) -> Any:
    """Copy to an NDArray of the CPU; never an alias, so that what is read cannot be overwritten."""
    tensor = array.tensor
    tensor = tensor.cpu() if tensor.is_cuda else tensor.clone()
    return _stock("zerocopy_to_dgl_ndarray")(tensor)


def memory_of(array: Any) -> Tensor:
    """A tensor over the memory of an NDArray of the CPU, which it keeps alive."""
    return _stock("zerocopy_from_dgl_ndarray")(array)


def from_host(array: Any, device: torch.device) -> DeviceArray:
    """Copy an NDArray that C++ returned to the device."""
    return DeviceArray(memory_of(array).to(device))


def tensor_of(array: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor of an argument of a packed function, on ``device``."""
    tensor = array.tensor if type(array) is DeviceArray else memory_of(array)
    return tensor.to(device=device, dtype=dtype or tensor.dtype)


class Arrays:
    """A result of several arrays, which DGL reads as ``result(0)``, ``result(1)``, ..."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __call__(self, position: int) -> DeviceArray:
        return DeviceArray(self.tensors[position])

"""DGL's arrays on CUDA, and the streams that it hands around."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import dgl
import numpy as np
import pytest
import torch
from dgl import ndarray as nd
from dgl._ffi import streams as dgl_streams

import gnn_backend
from gnn_backend.adapters.dgl.residence import streams
from gnn_backend.adapters.dgl.residence.arrays import DeviceArray


def test_the_stream_of_a_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default stream has address 0, of which torch would make another stream."""
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: ("default", device))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda address, device: (address, device))
    assert streams.stream_of(ctypes.c_void_p(0), device) == ("default", device)
    assert streams.stream_of(ctypes.c_void_p(64), device) == (64, device)


def test_the_current_stream_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = {1: 0x70}
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=handle[device])
    )
    with gnn_backend.enabled(hosts="dgl"):
        assert dgl_streams._dgl_get_stream(nd.gpu(1)).value == 0x70
        assert not dgl_streams._dgl_get_stream(nd.cpu(0)).value


def test_copies_between_cpu_and_device() -> None:
    """Over a tensor of the CPU, for there is nothing in it that asks for a GPU."""
    with gnn_backend.enabled(hosts="dgl"):
        host = nd.array(np.arange(4, dtype="float32"))
        there = DeviceArray(torch.zeros(4))
        assert host.copyto(there) is there
        assert there.tensor.tolist() == [0, 1, 2, 3]
        there.tensor.mul_(2)
        assert there.copyto(nd.empty((4,))).asnumpy().tolist() == [0, 2, 4, 6]
        host[:] = there
        assert host.asnumpy().tolist() == [0, 2, 4, 6]
        assert type(host.copyto(nd.cpu(0))) is nd.NDArray


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_arrays_on_cuda(dtype: str) -> None:
    with gnn_backend.enabled(hosts="dgl"):
        empty = nd.empty((2, 3), dtype, nd.gpu(0))
        assert type(empty) is DeviceArray
        assert (empty.shape, empty.dtype, empty.ctx) == ((2, 3), dtype, nd.gpu(0))
        host = nd.array(np.arange(6).reshape(2, 3).astype(dtype))
        there = host.copyto(nd.gpu(0))
        assert there.asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        empty.copyfrom(there)
        assert empty.copyto(nd.cpu(0)).asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert nd.array(np.arange(3), nd.gpu(0)).asnumpy().tolist() == [0, 1, 2]


def test_dlpack() -> None:
    """Of the CPU, as stock."""
    x = torch.zeros(3, 4)
    with gnn_backend.enabled(hosts="dgl"):
        array = nd.from_dlpack(torch.utils.dlpack.to_dlpack(x))
        x[0] = 1
        assert type(array) is nd.NDArray and array.asnumpy().sum() == 4


@pytest.mark.gpu
def test_dlpack_on_cuda() -> None:
    x = torch.zeros(3, 4, device="cuda")
    with gnn_backend.enabled(hosts="dgl"):
        array = nd.from_dlpack(torch.utils.dlpack.to_dlpack(x))
        x[0] = 1
        assert type(array) is DeviceArray and array.asnumpy().sum() == 4


@pytest.mark.gpu
def test_memory_in_use_on_the_default_stream_is_kept() -> None:
    """An array freed on the host stays until the stream that was recorded has passed."""
    with gnn_backend.enabled(hosts="dgl"):
        side, default = torch.cuda.Stream(), torch.cuda.default_stream()
        with torch.cuda.stream(side):
            array = nd.array(np.arange(4, dtype="float32"), nd.gpu(0))
        address = dgl.backend.zerocopy_from_dgl_ndarray(array).data_ptr()
        default.wait_stream(side)
        array.record_stream(dgl_streams.to_dgl_stream_handle(default))
        torch.cuda._sleep(200_000_000)  # cycles, about a tenth of a second
        del array
        with torch.cuda.stream(side):
            other = nd.empty((4,), ctx=nd.gpu(0))
        assert dgl.backend.zerocopy_from_dgl_ndarray(other).data_ptr() != address
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            again = nd.empty((4,), ctx=nd.gpu(0))
        assert dgl.backend.zerocopy_from_dgl_ndarray(again).data_ptr() == address

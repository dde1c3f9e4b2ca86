"""CUDA launches with a stand-in for the driver: what it is given, on which device and stream."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from gnn_backend.errors import Unsupported
from gnn_backend.profile import profile
from gnn_backend.runtime import cuda
from gnn_backend.runtime.instances import Unit

UNIT = Unit("add", ("add", "sub"), "// text")
ARGS = bytes(range(24))


class Driver:
    """Two devices; records launches and the current device during each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        self.launched: list[SimpleNamespace] = []
        self.loaded: list[int] = []
        monkeypatch.setattr(cuda, "_functions", {})
        monkeypatch.setattr(cuda, "_enter_context", lambda device: None)
        monkeypatch.setattr(cuda, "_driver", lambda: self)
        monkeypatch.setattr(cuda, "_load", self.load)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "device", self.device)
        monkeypatch.setattr(
            torch._C, "_cuda_getCurrentRawStream", lambda d: 7000 + d, raising=False
        )

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before

    def load(self, device: int, unit: Unit) -> None:
        assert self.current == device
        self.loaded.append(device)
        for number, entry in enumerate(unit.entries):
            cuda._functions[device, unit.key, entry] = SimpleNamespace(ptr=100 * device + number)

    def launchKernel(self, *call: int) -> None:
        function, *shape, shared, stream, parameters, extra = call
        (address,) = (ctypes.c_void_p * 1).from_address(parameters)
        args = ctypes.string_at(address, len(ARGS))
        self.launched.append(SimpleNamespace(
            device=self.current, function=function, shape=tuple(shape), shared=shared,
            stream=stream, args=args, extra=extra,
        ))  # fmt: skip


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_a_launch(device: int, current: int, driver: Driver) -> None:
    driver.current = current
    with profile() as record:
        cuda.launch(UNIT, "sub", (5, 6, 1), (128, 1, 1), ARGS, device)
    (call,) = driver.launched
    assert call.device == device and driver.current == current
    assert call.function == 100 * device + 1
    assert call.shape == (5, 6, 1, 128, 1, 1)
    assert (call.shared, call.stream, call.extra) == (0, 7000 + device, 0)
    assert call.args == ARGS
    assert dict(record.launches) == {("cuda", "sub"): 1}


def test_a_unit_is_loaded_once_a_device(driver: Driver) -> None:
    for device in (0, 1, 0, 1):
        for entry in UNIT.entries:
            cuda.launch(UNIT, entry, (1, 1, 1), (32, 1, 1), ARGS, device)
    assert driver.loaded == [0, 1]
    edited = Unit(UNIT.name, UNIT.entries, "// another text")
    cuda.launch(edited, "add", (1, 1, 1), (32, 1, 1), ARGS, 0)
    assert driver.loaded == [0, 1, 0]


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda.function", None)
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.api", None)
    cuda._driver.cache_clear()
    yield
    cuda._driver.cache_clear()


def test_without_cupy(no_cupy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cuda.available()
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    with pytest.raises(Unsupported) as caught:
        cuda.launch(UNIT, "add", (1, 1, 1), (32, 1, 1), ARGS, 0)
    assert caught.value.reason == "no-cupy"


def test_with_cupy() -> None:
    pytest.importorskip("cupy_backends.cuda.api", reason="no CuPy")
    assert cuda.available()

"""Which engine runs what, and what none of them runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gnn_backend import config
from gnn_backend.errors import Unsupported
from gnn_backend.runtime import cpu, launch
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.launch import engine_for

CPU = torch.device("cpu")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def no_engines_kept() -> Iterator[None]:
    launch._device_engine.cache_clear()
    yield
    launch._device_engine.cache_clear()


@pytest.mark.parametrize("dtype", FLOATS)
def test_numba(dtype: torch.dtype) -> None:
    with config.override(cpu_target="numba"):
        assert engine_for(CPU, dtype) is cpu


@pytest.mark.parametrize("dtype", FLOATS)
def test_emulator(dtype: torch.dtype) -> None:
    with config.override(cpu_target="emulator"):
        if dtype == torch.float64:
            with pytest.raises(Unsupported) as caught:
                engine_for(CPU, dtype)
            assert caught.value.reason == "dtype-float64"
        else:
            engine = engine_for(CPU, dtype)
            assert isinstance(engine, DeviceEngine) and engine.emulated


def test_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for each device, whose kernels run there."""
    monkeypatch.setattr("gnn_backend.runtime.cuda.multiprocessors", lambda index: 100 + index)
    first, second = (engine_for(torch.device("cuda", i), torch.float16) for i in (0, 1))
    assert (first.multiprocessors, second.multiprocessors) == (100, 101)
    assert not first.emulated
    assert engine_for(torch.device("cuda", 0), torch.float32) is first


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [
        ("cuda:0", torch.float64, "dtype-float64"),
        ("cpu", torch.int32, "dtype-unsupported"),
        ("cpu", torch.float8_e5m2, "dtype-unsupported"),
        ("cuda:0", torch.complex64, "dtype-unsupported"),
        ("meta", torch.float32, "device"),
        ("mps", torch.float32, "device"),
    ],
)
def test_refused(device: str, dtype: torch.dtype, reason: str) -> None:
    with pytest.raises(Unsupported) as caught:
        engine_for(torch.device(device), dtype)
    assert caught.value.reason == reason

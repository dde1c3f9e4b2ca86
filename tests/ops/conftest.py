"""The engines that CPU tensors can run on, and short chunks that split rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from gnn_backend import config
from gnn_backend.runtime import cpu_call, selection
from gnn_backend.runtime import emulator as emulator_module
from gnn_backend.runtime.sparse import rows


@pytest.fixture(params=["numba", "emulator"])
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on the Numba target and on the host emulator."""
    if request.param == "emulator" and shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    with config.override(cpu_target=request.param):
        yield request.param


@pytest.fixture
def emulator() -> Iterator[None]:
    """Run the test on the host emulator."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    with config.override(cpu_target="emulator"):
        yield


@pytest.fixture
def unoptimised(emulator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for the emulator in half the time: for many kernels, each of which runs briefly."""
    monkeypatch.setattr(emulator_module, "_PLAIN_FLAGS", ("-O0",))


@pytest.fixture
def split_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Cut rows into chunks of so many neighbours, on both targets."""

    def split(chunk: int) -> None:
        monkeypatch.setattr(selection, "chunk_for", lambda *_, **__: chunk)
        monkeypatch.setattr(cpu_call, "BLOCK_WORK", chunk)
        monkeypatch.setattr(rows, "chunk_of", lambda *_: chunk)

    return split


@pytest.fixture
def splitting(split_at: Callable[[int], None]) -> None:
    """Cut rows into chunks of 8 neighbours."""
    split_at(8)

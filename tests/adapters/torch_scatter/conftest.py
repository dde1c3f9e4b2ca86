"""The engines that CPU tensors can be reduced on: torch's operations, and the emulated kernels."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from gnn_backend import config
from gnn_backend.adapters.torch_scatter import clear_cache
from gnn_backend.runtime import emulator as emulator_module
from gnn_backend.runtime.sparse import rows


@pytest.fixture(params=["torch", "kernels"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test on torch's operations and on the kernels, with rows split."""
    if request.param == "torch":
        yield request.param
        return
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    monkeypatch.setattr(emulator_module, "_PLAIN_FLAGS", ("-O0",))
    monkeypatch.setattr(rows, "chunk_of", lambda *_: 4)
    monkeypatch.setattr("gnn_backend.ops.groups.chunk_of", lambda *_: 4)
    with config.override(cpu_target="emulator"):
        yield request.param


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    clear_cache()
    yield
    clear_cache()

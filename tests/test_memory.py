"""Peak memory of a call, where the system tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gnn_backend
from gnn_backend import memory

MIB = 2**20


def test_resident_growth_sees_an_allocation_that_is_freed_again() -> None:
    def call() -> None:
        torch.ones(64 * MIB // 4)

    growth, nothing = memory.resident_growth(call), memory.resident_growth(lambda: None)
    if growth is None or nothing is None:
        pytest.skip("this system does not tell the resident peak")
    assert 60 * MIB <= growth <= 90 * MIB
    assert nothing <= 4 * MIB


@pytest.mark.parametrize("missing", ["_RESET_PEAK", "_STATUS"])
@pytest.mark.sampled(2)
def test_where_the_system_does_not_tell_there_is_no_figure(
    fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    monkeypatch.setattr(memory, missing, tmp_path / "no" / "such" / "file")
    called: list[int] = []
    assert memory.resident_growth(lambda: called.append(1)) is None
    assert called == [1]
    found = gnn_backend.compare(fake.load().Conv(), torch.ones(2, 3), repeats=1)
    assert found.peak_bytes == {"stock": None, "backend": None}
    assert "-" in str(found) and json.dumps(found.to_dict())


def test_available_memory_is_known_here() -> None:
    available = memory.available_bytes("cpu")
    assert available is not None and available > MIB

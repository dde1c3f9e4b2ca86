"""The typed linear's benchmark: what it measures, and its tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gnn_backend.bench import timing, typed_linear
from gnn_backend.cli.app import app
from gnn_backend.datasets import RelationalData, relational
from gnn_backend.errors import InvalidArgument
from tests.ops.conftest import emulator, unoptimised

__all__ = ["emulator", "unoptimised"]


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch, unoptimised: None) -> dict[str, Any]:
    """What a GPU run does, on the emulator: every clock reads 1 ms."""

    def clock(call: Callable[[], Any]) -> float:
        call()
        return 1.0

    edge_index, types = relational(20, 150, 4, seed=0)
    data = RelationalData("small", edge_index, 20, edge_type=types, num_edge_types=4)
    monkeypatch.setattr(timing, "brief_ms", clock)
    monkeypatch.setattr(typed_linear, "load", lambda *_, **__: data)
    monkeypatch.setattr(typed_linear, "device_report", lambda: {"name": "none"})
    settings = typed_linear.Settings(16, 8, ("float32", "tf32"), device="cpu")
    return typed_linear.run(["small"], settings, lambda line: None)


def test_every_pass_is_measured(document: dict[str, Any], tmp_path: Path) -> None:
    exact, tf32 = document["graphs"]
    for row in (exact, tf32):
        assert (row["rows"], row["types"], row["operations"]) == (150, 4, 2 * 150 * 16 * 8)
        assert tuple(row["times"]) == typed_linear.PASSES
        for times in row["times"].values():
            assert {"gathered", "in order", "torch.mm, one weight", "loop over types"} <= set(times)
            assert set(times.values()) == {1.0}
    assert exact["max_rel_error"] < 1e-6 < tf32["max_rel_error"] < 1e-3
    file = tmp_path / "run.json"
    exact["times"]["forward"]["loop over types"] = None
    file.write_text(json.dumps(document))
    shown = CliRunner().invoke(app, ["bench", "show", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "input_grad" in shown.stdout and "out of memory" in shown.stdout


def test_graphs_without_types_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="edges have no types"):
        typed_linear.run(["grid"], typed_linear.Settings(device="cpu"), lambda line: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu() -> None:
    result = CliRunner().invoke(app, ["bench", "gemm"])
    assert result.exit_code == 2 and "no CUDA device" in result.stderr
    result = CliRunner().invoke(app, ["bench", "gemm", "--precision", "float99"])
    assert result.exit_code == 2 and "--precision" in result.stderr

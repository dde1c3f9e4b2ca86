"""The aggregation's benchmark: what it measures, its ratios and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gnn_backend.bench import aggregation, operators
from gnn_backend.cli.app import app
from gnn_backend.config import override
from tests.bench.test_operators import graph_file, pretend_gpu

__all__ = ["graph_file", "pretend_gpu"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, pretend_gpu: None) -> None:
    monkeypatch.setattr(aggregation, "_COPIED_BYTES", 1 << 10)
    monkeypatch.setattr(aggregation, "device_report", lambda: {"name": "none"})


def _run(graph_file: Path, family: str, **settings: Any) -> dict[str, Any]:
    chosen = aggregation.Settings(family, (16,), device="cpu", **settings)
    with override(cpu_target="emulator"):
        document = aggregation.run([str(graph_file)], chosen, lambda line: None)
    json.dumps(document)
    return document


@pytest.mark.parametrize("family", ["reduce", "spmm"])
def test_every_pass_is_measured(family: str, graph_file: Path, tmp_path: Path) -> None:
    document = _run(graph_file, family)
    assert document["benchmark"] == family
    (row,) = document["graphs"]
    measured = row["operators"]
    assert all(figures["ms"] == figures["eager_ms"] == 1.0 for figures in measured.values())
    assert all(figures["launches"] == 1 for figures in measured.values())
    assert measured["sum"]["ratio"] == 1.0  # to g1, which reads 1 ms as well
    assert measured["sum"]["bytes"] == 200 * (4 + 64) + 30 * 64
    names = set(aggregation.LIMITS) & set(measured)
    if family == "reduce":
        assert {"max", "max, backward", "mean, max, min, std"} <= names
        assert measured["max, backward"]["bytes"] == 200 * (4 + 2 * 64) + 5 * 30 * 64
        assert measured["max, backward"]["against"] == "g2 by source"
        assert row["stock"]["scatter_reduce amax"] == 1.0
    else:
        assert measured["sum weighted"]["bytes"] == 200 * (4 + 4 + 64 + 4) + 30 * 64
        assert row["stock"]["weighted scatter_add"] == 1.0
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document))
    shown = CliRunner().invoke(app, ["bench", "show", str(file)])
    assert shown.exit_code == 0 and "yardstick g1 by source" in shown.stdout


def test_a_different_yardstick_voids_its_ratios(graph_file: Path) -> None:
    file = graph_file.with_name("other.py")
    file.write_text("def limits(*a, **k):\n    return {'float32': {'g1': 2.0, 'g2': 1.0}}\n")
    (row,) = _run(graph_file, "spmm", check_yardstick=file)["graphs"]
    assert row["yardstick"]["check"]["void"] is True
    assert row["operators"]["sum"]["ratio"] is None


def test_out_of_memory_is_a_result(graph_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr(aggregation, "aggregate", full)
    (row,) = _run(graph_file, "spmm")["graphs"]
    assert row["operators"]["sum"]["ms"] is None
    assert row["operators"]["sum, backward"]["ms"] == 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("family", ["reduce", "spmm"])
def test_without_a_gpu(family: str) -> None:
    result = CliRunner().invoke(app, ["bench", family])
    assert result.exit_code == 2 and "no CUDA device" in result.stderr
    assert operators.LIMITS["copy_u_max"] == aggregation.LIMITS["max"]

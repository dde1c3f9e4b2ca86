"""The operators' benchmark: what it measures, its ratios and its tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gnn_backend.bench import hosts, operators, timing
from gnn_backend.cli.app import app
from gnn_backend.config import override
from gnn_backend.datasets import uniform


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.npz"
    np.savez(path, edge_index=uniform(30, 30, 200).numpy(), num_nodes=30)
    return path


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU run does, on the emulator: every clock reads 1 ms."""

    def clock(call: Callable[[], Any], *_: Any, **__: Any) -> float:
        call()
        return 1.0

    monkeypatch.setattr(timing, "replay_ms", clock)
    monkeypatch.setattr(timing, "eager_ms", clock)
    monkeypatch.setattr(operators, "_COPIED_BYTES", 1 << 10)
    monkeypatch.setattr(operators, "device_report", lambda: {"name": "none"})


def _run(graph_file: Path, **settings: Any) -> dict[str, Any]:
    chosen = operators.Settings(heads=2, dim=8, device="cpu", **settings)
    with override(cpu_target="emulator"):
        document = operators.run([str(graph_file)], chosen, lambda line: None)
    json.dumps(document)
    return document


def test_every_operator_is_measured(graph_file: Path, pretend_gpu: None, tmp_path: Path) -> None:
    document = _run(graph_file)
    (row,) = document["graphs"]
    for order in ("given", "csr"):
        measured = row["operators"][order]
        assert set(operators.LIMITS) < set(measured)
        for name, figures in measured.items():
            assert figures["ms"] == 1.0
            assert figures["launches"] == (2 if "softmax" in name else 1)
    assert row["edge_gather_ms"] == 1.0
    given = row["operators"]["given"]
    assert given["copy_u_sum"]["ratio"] == 1.0  # to g1, which reads 1 ms as well
    assert given["copy_u_sum"]["bytes"] == 200 * (4 + 64) + 30 * 64
    assert given["u_add_v"]["bytes"] == 200 * (8 + 64 + 64) + 30 * 64
    assert given["edge_softmax"]["bytes"] == 200 * (4 + 2 * 8)
    in_order = row["operators"]["csr"]
    assert in_order["u_add_v"]["bytes"] == 200 * (4 + 64 + 64) + 30 * 64  # no edge ids to read
    assert in_order["edge_softmax_backward"]["bytes"] == 200 * 3 * 8
    rate = 2 * operators._COPIED_BYTES
    assert given["u_add_v"]["ratio"] == round(rate / given["u_add_v"]["bytes"], 3)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document))
    shown = CliRunner().invoke(app, ["bench", "show", str(file)])
    assert shown.exit_code == 0 and "edge_softmax_backward" in shown.stdout
    if hosts.installed("dgl"):
        times = row["dgl"]["operators"]["u_mul_e_sum"]
        assert times == {"forward_ms": 1.0, "forward_backward_ms": 1.0}
        assert row["dgl"]["move_ms"] > 0 and "graph to the device" in shown.stdout
    else:
        assert row["dgl"] is None


def test_a_different_yardstick_voids_its_ratios(graph_file: Path, pretend_gpu: None) -> None:
    file = graph_file.with_name("other.py")
    file.write_text("def limits(*a, **k):\n    return {'float32': {'g1': 2.0, 'g2': 1.0}}\n")
    (row,) = _run(graph_file, check_yardstick=file)["graphs"]
    given = row["operators"]["given"]
    assert row["yardstick"]["check"]["void"] is True
    assert given["copy_u_sum"]["ratio"] is None and given["u_add_v"]["ratio"] is not None


def test_large_results_are_timed_eagerly(
    graph_file: Path, pretend_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "_REPLAYED_BYTES", 100)
    (row,) = _run(graph_file)["graphs"]
    assert row["operators"]["given"]["u_add_v"]["timed"] == "eager"


def test_out_of_memory_is_a_result(
    graph_file: Path, pretend_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr(operators, "gsddmm", full)
    (row,) = _run(graph_file)["graphs"]
    assert row["operators"]["given"]["u_add_v"]["timed"] == "out of memory"
    assert row["operators"]["given"]["edge_softmax"]["ms"] == 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu() -> None:
    result = CliRunner().invoke(app, ["bench", "operators"])
    assert result.exit_code == 2 and "no CUDA device" in result.stderr

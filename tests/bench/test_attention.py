"""The attention benchmark: what it measures, its ratios, and its tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gnn_backend import memory
from gnn_backend.bench import attention, rivals, stock, timing
from gnn_backend.bench.hosts import Shape
from gnn_backend.cli.app import app
from gnn_backend.config import override
from gnn_backend.datasets import uniform


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.npz"
    np.savez(path, edge_index=uniform(30, 30, 200).numpy(), num_nodes=30)
    return path


def test_command_on_the_cpu(
    graph_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_geometric")
    monkeypatch.setattr("gnn_backend.bench.hosts.HOSTS", ("pyg",))  # each host is two processes
    results = tmp_path / "results" / "run.json"
    arguments = ["bench", "attention", "--graph", str(graph_file), "--device", "cpu"]
    sizes = ["--heads", "2", "--dim", "4", "--in-dim", "8", "--repeats", "1"]
    done = CliRunner().invoke(app, [*arguments, *sizes, "--json", str(results)])
    assert done.exit_code == 0, done.output
    document = json.loads(results.read_text())
    assert document["versions"]["torch"] and document["date"] and document["device"]["threads"]
    assert document["settings"]["shape"] == {"in_dim": 8, "dim": 4, "heads": 2}
    (row,) = document["graphs"]
    assert (row["graph"], row["num_edges"], row["yardstick"]) == ("small", 200, None)
    assert row["ours"]["forward_ms"] > 0 and row["ours"]["forward_backward_ms"] > 0
    stock_layer, ours = row["layers"]["pyg"], row["layers"]["pyg_accelerated"]
    assert stock_layer["peak_bytes"] >= 0 and ours["forward_backward_ms"] > 0
    quotient = stock_layer["forward_backward_ms"] / ours["forward_backward_ms"]
    assert row["ratios"]["speedup_over_pyg_layer"] == pytest.approx(quotient, abs=1e-3)
    assert str(tmp_path) not in results.read_text()
    shown = CliRunner().invoke(app, ["bench", "show", str(results)])
    assert shown.exit_code == 0
    assert "PyG GATv2Conv, accelerated" in shown.stdout and "ratios" in shown.stdout


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU run does, on the emulator: every clock reads 1 ms, every peak 1000 bytes."""

    def clock(call: Callable[[], Any], *_: Any) -> float:
        call()
        return 1.0

    def peak(call: Callable[[], Any], base: int = 0) -> int:
        call()
        return 1000

    monkeypatch.setattr(attention.Settings, "gpu", True)
    monkeypatch.setattr(timing, "replay_ms", clock)
    monkeypatch.setattr(timing, "eager_ms", lambda call, device, *_: clock(call))
    monkeypatch.setattr(timing, "wall_ms", lambda call, repeats: 1.0)
    monkeypatch.setattr(memory, "cuda_peak_bytes", peak)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def _run(graph_file: Path, **settings: Any) -> dict[str, Any]:
    chosen = attention.Settings(Shape(8, 8, 2), "cpu", **settings)
    with override(cpu_target="emulator"):
        document = attention.run([str(graph_file)], chosen, lambda line: None)
    (row,) = document["graphs"]
    json.dumps(document)
    return row


def test_gpu_run(graph_file: Path, pretend_gpu: None) -> None:
    pytest.importorskip("torch_geometric")
    row = _run(graph_file)
    assert row["yardstick"]["g1_ms"] == row["yardstick"]["g2_ms"] == 1.0
    assert row["ratios"]["forward_over_g1"] == 1.0
    assert row["ratios"]["forward_backward_over_2g1_g2"] == pytest.approx(1 / 3, abs=1e-3)
    inputs_and_output = (30 + 30) * 16 + 16 + 30 * 16
    assert row["ours"]["io_bytes"] == 2 * 4 * inputs_and_output
    assert row["ratios"]["peak_over_io"] == pytest.approx(1000 / (8 * inputs_and_output), abs=1e-3)
    assert row["graph_bytes"] > 0
    for name in ("pyg", "pyg_accelerated", "pyg_message_passing"):
        assert row["layers"][name]["peak_bytes"] == 1000
    assert row["turbo_gnn"] == "not installed"


@pytest.mark.parametrize("name", ["gat", "dot"])
@pytest.mark.thorough
def test_other_operators(graph_file: Path, pretend_gpu: None, name: str) -> None:
    row = _run(graph_file, operator=name, variants=True)
    counts = {"gat": ("forward_over_g1", 1, "forward_backward_over_3g1", 3)}
    forward, once, both, whole = counts.get(
        name, ("forward_over_g2", 1, "forward_backward_over_3g2", 3)
    )
    assert row["ratios"][forward] == pytest.approx(1 / once, abs=1e-3)
    assert row["ratios"][both] == pytest.approx(1 / whole, abs=1e-3)
    assert set(row["variants"]) == set(attention.OPERATORS[name].variants)
    assert row["variants"]["dropout"]["forward_ratio"] == 1.0
    assert row["variants"]["dropout"]["csr_order"]["forward_ratio"] == 1.0
    assert row["paths"] == {}  # no tiles of float32
    edges = row["variants"]["edge_logit" if name == "gat" else "edge_bias"]
    values, ids = 200 * 2 * 4, 200 * 4
    assert edges["forward_own_bytes"] == values + ids
    assert edges["forward_backward_own_bytes"] == 4 * values + 3 * ids
    assert "turbo_gnn" not in row


@pytest.mark.thorough
def test_rows_and_tiles(graph_file: Path, pretend_gpu: None) -> None:
    chosen = attention.Settings(
        Shape(8, 16, 1), "cpu", ("bfloat16",), operator="dot", variants=True
    )
    with override(cpu_target="emulator"):
        (row,) = attention.run([str(graph_file)], chosen, lambda line: None)["graphs"]
    assert not any(row["paths"]["tiles_chosen"].values()) and len(row["paths"]["tiles_chosen"]) == 3
    assert row["paths"]["edges_per_tile"] > 0
    assert row["paths"]["rows"]["forward_replay_ms"] == 1.0
    assert row["paths"]["tiles"]["forward_backward_replay_ms"] == 1.0


@pytest.mark.thorough
def test_shapes(graph_file: Path, pretend_gpu: None) -> None:
    from gnn_backend.bench import shapes, tables

    chosen = shapes.Settings(("gatv2",), heads=(1, 2), dims=(16, 7), device="cpu")
    with override(cpu_target="emulator"):
        document = shapes.run([str(graph_file)], chosen, lambda line: None)
    json.dumps(document)
    sizes = [(row["heads"], row["dim"]) for row in document["shapes"]]
    assert sizes == [(1, 16), (1, 7), (2, 16), (2, 7)]
    exact, scaled = document["shapes"][0], document["shapes"][1]
    assert exact["forward_over_g1"] == 1.0 and exact["forward_ms"] == 1.0
    assert scaled["forward_over_g1"] == pytest.approx(16 / 7, abs=1e-3)
    middle = shapes.medians(document["shapes"])["gatv2"]
    assert middle["forward_over_g1"] == pytest.approx((1 + 16 / 14) / 2, abs=1e-3)
    titles = [table.title for table in tables.shape_tables(document)]
    assert titles[0] == "gatv2: forward over g1 (<= 1.3)" and len(titles) == 2


def test_a_different_yardstick_voids_its_ratios(graph_file: Path, pretend_gpu: None) -> None:
    file = graph_file.with_name("other.py")
    file.write_text("def limits(*a, **k):\n    return {'float32': {'g1': 2.0, 'g2': 1.0}}\n")
    row = _run(graph_file, check_yardstick=file)
    assert row["yardstick"]["check"]["void"] is True
    assert row["ratios"]["forward_over_g1"] is None
    assert row["ratios"]["peak_over_io"] is not None


@pytest.mark.thorough
def test_stock_layers_that_cannot_fit_are_not_tried(
    graph_file: Path, pretend_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch_geometric")
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10)
    row = _run(graph_file)
    assert row["layers"]["pyg"].startswith("out-of-memory (estimated")
    assert row["ratios"]["speedup_over_pyg_layer"] is None
    assert isinstance(row["layers"]["pyg_accelerated"], dict)
    assert isinstance(_run(graph_file, force_stock=True)["layers"]["pyg"], dict)


def test_out_of_memory_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(backward: bool) -> None:
        raise torch.cuda.OutOfMemoryError("no")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert stock.measured(step, "cuda", 5, 3) == "out-of-memory"


@pytest.mark.thorough
def test_rows_of_odd_width_have_no_yardstick(graph_file: Path, pretend_gpu: None) -> None:
    chosen = attention.Settings(Shape(8, 7, 2), "cpu")
    with override(cpu_target="emulator"):
        (row,) = attention.run([str(graph_file)], chosen, lambda line: None)["graphs"]
    assert row["yardstick"] is None and row["ratios"]["forward_over_g1"] is None


class FakeTurbo:
    """The part of the rival's interface that is used, computed by ours."""

    class AdjacencyForwardBackwardWithNodeBuckets:
        @classmethod
        def from_csr(cls, *parts: torch.Tensor) -> Any:
            assert all(part.dtype == torch.int64 for part in parts)
            made = cls()
            made.parts = parts  # type: ignore[attr-defined]
            return made

        def to(self, device: str) -> Any:
            return self

    @staticmethod
    def gatv2_aggr(graph: Any, x: Any, x_neighbors: Any, weights: Any, **warps: int) -> Any:
        from gnn_backend.graph import Graph
        from gnn_backend.ops.attention import gatv2_attention

        assert len(warps) == 4
        ours = Graph.from_csr(*graph.parts[:2], num_src=x_neighbors.shape[0])
        return gatv2_attention(ours, x_neighbors, x, weights).flatten(1)


def test_turbo_gnn_where_it_is_installed(
    graph_file: Path, pretend_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "turbo_gnn", FakeTurbo)
    monkeypatch.setattr(rivals, "_installed", lambda: True)
    row = _run(graph_file)
    assert row["turbo_gnn"] == {"forward_ms": 1.0, "forward_backward_ms": 1.0}
    assert row["ratios"]["speedup_over_turbo_gnn"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["attention", "--device", "tpu"], "expected one of cuda, cpu"),
        (["attention", "--operator", "mean"], "expected one of gatv2, gat, dot"),
        (["shapes", "--heads", "two"], "expected positive numbers"),
        (["attention", "--dtype", "int4"], "expected names among"),
        (["show", "missing.json"], "no such file"),
    ],
)
def test_bad_usage(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize(
    "text",
    ["{", '{"benchmark": "other"}', "[]", '{"benchmark": "attention"}',
     '{"benchmark": "attention", "device": 3, "date": "", "graphs": 3}'],
)  # fmt: skip
def test_show_refuses_other_files(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    result = CliRunner().invoke(app, ["bench", "show", str(file)])
    assert result.exit_code == 2 and "Traceback" not in result.output

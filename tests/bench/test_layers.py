"""Whole layers against stock: what is measured, and which of it counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from gnn_backend.bench import layers, resident, samples
from gnn_backend.bench.tables import layer_tables
from gnn_backend.cli.app import app
from gnn_backend.datasets import GraphData

CORA = Path(__file__).parents[2] / "examples" / "data" / "cora.npz"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[resident.Request]:
    """The processes that are asked for; the later, the faster they answer."""
    made: list[resident.Request] = []

    def measure(request: resident.Request, **environment: str) -> resident.Measurement:
        made.append(request)
        ms = (1.0 if request.backend else 10.0) + 1.0 / len(made)
        return resident.Measurement(1 << 20, ms / 2, ms)

    monkeypatch.setattr(resident, "measure", measure)
    return made


@pytest.mark.parametrize(("host", "layer"), [("dgl", "GATConv"), ("pyg", "AGNNConv")])
def test_best_of_rounds_in_turn(
    host: str, layer: str, requests: list[resident.Request], tmp_path: Path
) -> None:
    pytest.importorskip({"dgl": "dgl", "pyg": "torch_geometric"}[host])
    file = tmp_path / "layers.json"
    command = ["bench", "layers", "--graph", str(CORA), "--host", host, "--layer", layer]
    shown = CliRunner().invoke(app, [*command, "--rounds", "2", "--json", str(file)])
    assert shown.exit_code == 0, shown.output
    assert layer in shown.output
    assert [r.backend for r in requests] == [False, True, False, True]
    [row] = json.loads(file.read_text())["layers"]
    assert (row["host"], row["layer"], row["num_nodes"]) == (host, layer, 2708)
    assert row["ms"] == {"stock": 10.0 + 1 / 3, "backend": 1.25}
    assert row["speed"] == pytest.approx(row["ms"]["stock"] / row["ms"]["backend"])
    assert (row["projections_ms"] > 0) == (layer != "AGNNConv")


def test_all_layers_are_measured(requests: list[resident.Request]) -> None:
    pytest.importorskip("dgl")
    kept: list[int] = []
    settings = layers.Settings(hosts=("dgl",), rounds=1)
    layers.run([str(CORA)], settings, lambda text: None, lambda d: kept.append(len(d["layers"])))
    cases = layers.FAMILIES["attention"]["dgl"]
    assert {r.layer for r in requests} == {c.layer for c in cases}
    assert kept == [1, 2, 3, 4, 5]  # what is measured is there though the run be cut off


@pytest.mark.parametrize("host", ["dgl", "pyg"])
def test_forms_of_aggregating_layers(
    host: str, requests: list[resident.Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every form can be made and called, and is measured with its own arguments."""
    pytest.importorskip({"dgl": "dgl", "pyg": "torch_geometric"}[host])
    monkeypatch.setattr(layers, "_projections_ms", lambda *_: 1.0)
    settings = layers.Settings(hosts=(host,), rounds=1, family="aggregation")
    found = layers.run([str(CORA)], settings, lambda text: None)
    cases = layers.FAMILIES["aggregation"][host]
    assert [row["layer"] for row in found["layers"]] == [case.label for case in cases]
    assert [r.options for r in requests[::2]] == [case.options for case in cases]
    for case in cases:
        data = GraphData("tiny", torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
        made = samples.sample(layers._request(host, case, data, settings))
        resident.step(made)()
        assert not set(case.without) & set(made.kwargs)


class Forgetting:
    """In the place of a GPU: figures of one side, and of the other that it does not fit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        monkeypatch.setattr(layers.memory, "available_bytes", lambda device: free)
        monkeypatch.setattr(layers.stock, "measured", self.measured)
        self.steps = 0

    def measured(self, step: Any, device: str, inner: int, repeats: int) -> dict[str, float]:
        step(True)
        step(False)
        self.steps += 1
        return {"forward_ms": 1.0, "forward_backward_ms": 2.0 * self.steps, "peak_bytes": 1 << 20}


@pytest.mark.parametrize("free", [0, 1 << 40])
def test_stock_that_does_not_fit_is_marked(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    pytest.importorskip("torch_geometric")
    Forgetting(monkeypatch, free)
    settings = layers.Settings(hosts=("pyg",), family="aggregation")  # sampled on the CPU
    data = GraphData("tiny", torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
    case = layers.FAMILIES["aggregation"]["pyg"][0]
    found = layers._row(data, "pyg", case, layers._on_gpu(data, "pyg", case, settings))
    assert found["ms"] == {"stock": 4.0 if free else None, "backend": 2.0}
    assert found["speed"] == (2.0 if free else None)
    assert bool(found["notes"]) == (not free)
    document = {"device": {"name": "none", "threads": 1}, "date": "", "layers": [found]}
    assert layer_tables(document)


@pytest.mark.parametrize("option", [["--host", "jax"], ["--layer", "GCNConv"]])
def test_what_is_not_measured_is_refused(option: list[str]) -> None:
    refused = CliRunner().invoke(app, ["bench", "layers", "--graph", str(CORA), *option])
    assert refused.exit_code == 2
    assert "expected" in refused.output

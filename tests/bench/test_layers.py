"""Attention layers on the CPU against stock: what is measured, and which of it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gnn_backend.bench import layers, resident
from gnn_backend.cli.app import app

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
    layers.run([str(CORA)], layers.Settings(hosts=("dgl",), rounds=1), lambda text: None)
    assert {r.layer for r in requests} == set(layers.LAYERS["dgl"])


@pytest.mark.parametrize("option", [["--host", "jax"], ["--layer", "GCNConv"]])
def test_what_is_not_measured_is_refused(option: list[str]) -> None:
    refused = CliRunner().invoke(app, ["bench", "layers", "--graph", str(CORA), *option])
    assert refused.exit_code == 2
    assert "expected" in refused.output

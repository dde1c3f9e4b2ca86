"""The wrappers' benchmark: what it measures on the CPU, and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gnn_backend.cli.app import app

SMALL = ["--types", "2", "--nodes", "6", "--edges", "9", "--width", "4", "--repeats", "1"]


@pytest.mark.parametrize(
    ("host", "module", "layer"),
    [("pyg", "torch_geometric", "SAGEConv(mean)"), ("dgl", "dgl", "GraphConv")],
)
def test_both_sides_are_measured(host: str, module: str, layer: str, tmp_path: Path) -> None:
    pytest.importorskip(module)
    file = tmp_path / "run.json"
    command = ["bench", "wrappers", "--host", host, "--device", "cpu", "--layer", layer]
    done = CliRunner().invoke(app, [*command, "--relations", "3,5", *SMALL, "--json", str(file)])
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())["wrappers"]
    assert [row["relations"] for row in rows] == [3, 5]
    for row in rows:
        assert row["stock"]["training_ms"] > 0 and row["backend"]["inference_ms"] > 0
    assert rows[0]["launches"] == rows[1]["launches"] > 0
    shown = CliRunner().invoke(app, ["bench", "show", str(file)])
    assert shown.exit_code == 0 and layer in shown.stdout


@pytest.mark.parametrize("option", [["--layer", "GINConv"], ["--host", "dgl", "--device", "cuda"]])
def test_refusals(option: list[str]) -> None:
    refused = CliRunner().invoke(app, ["bench", "wrappers", *option])
    assert refused.exit_code == 2

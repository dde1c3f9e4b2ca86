"""The relational layers' benchmark: what it measures, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gnn_backend import memory
from gnn_backend.bench import hosts, relational, timing
from gnn_backend.cli.app import app
from gnn_backend.datasets import RelationalData
from gnn_backend.datasets import relational as drawn
from gnn_backend.errors import InvalidArgument
from gnn_backend.ir import steps
from gnn_backend.ops.reference import traversal as reference


@pytest.fixture
def document(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a GPU run does, in plain torch: every clock reads 1 ms."""

    def clock(call: Any, *_: Any) -> float:
        call()
        return 1.0

    edge_index, types = drawn(20, 150, 4, seed=0)
    data = RelationalData("small", edge_index, 20, edge_type=types, num_edge_types=4)
    monkeypatch.setattr(timing, "eager_ms", clock)
    monkeypatch.setattr(relational.gc, "collect", lambda: 0)  # of all that a run of tests holds
    monkeypatch.setattr(steps, "traverse", reference.run)
    monkeypatch.setattr(relational, "load", lambda *_, **__: data)
    monkeypatch.setattr(relational, "device_report", lambda: {"name": "none"})
    settings = relational.Settings(("rgcn", "rgat"), width=8, heads=(1, 2), device="cpu")
    kept: list[int] = []
    made = relational.run(
        ["small"], settings, lambda line: None,
        lambda d: kept.append(sum(len(r["ways"]) for r in d["graphs"])),
    )  # fmt: skip
    assert kept == list(range(1, kept[-1] + 1))  # what is measured is there though the run be cut
    return made


def test_every_way_is_measured(document: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    rows = document["graphs"]
    assert [(r["model"], r["heads"]) for r in rows] == [
        ("rgcn", 1), ("rgat", 1), ("rgat", 2),
    ]  # fmt: skip
    for row in rows:
        assert set(relational.VARIANTS) < set(row["ways"])
        assert {f"PyG {name}" for name in relational.STOCK[row["model"]]} < set(row["ways"])
        assert all(found["training_ms"] == 1.0 for found in row["ways"].values())
    rows[0]["ways"]["PyG FastRGCNConv"] = dict.fromkeys(
        ("inference_ms", "training_ms", "peak_bytes")
    )
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document))
    shown = CliRunner().invoke(app, ["bench", "show", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "ours, C+F" in shown.stdout and "out of memory" in shown.stdout


def test_out_of_memory_is_a_result() -> None:
    def make() -> relational.Step:
        raise torch.cuda.OutOfMemoryError

    found = relational._measured(make, relational.Settings(device="cpu"))
    assert found == {"inference_ms": None, "training_ms": None, "peak_bytes": None}


def test_graphs_without_types_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relational, "device_report", lambda: {"name": "none"})
    with pytest.raises(InvalidArgument, match="edges have no types"):
        relational.run(["grid"], relational.Settings(device="cpu"), lambda line: None)


@pytest.mark.parametrize("option", [["--model", "gcn"], ["--heads", "3"]])
def test_refusals(option: list[str]) -> None:
    refused = CliRunner().invoke(app, ["bench", "relational", *option])
    assert refused.exit_code == 2


def test_real_graphs_are_those_that_the_folder_has(tmp_path: Path) -> None:
    for name in ("wn18rr", "umls", "other"):
        (tmp_path / f"{name}.npz").touch()
    found = relational.real_graphs(tmp_path)
    assert [Path(file).stem for file in found] == ["umls", "wn18rr"]
    assert relational.real_graphs(None) == []


def test_what_does_not_fit_in_memory_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    edge_index, types = drawn(20, 150, 4, seed=0)
    data = RelationalData("small", edge_index, 20, edge_type=types, num_edge_types=4)
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2 * 150 * 64 * 64 * 4 - 1)
    settings = relational.Settings(device="cpu")
    relational._check_fits(data, "RGCNConv", settings)
    with pytest.raises(MemoryError, match="FastRGCNConv needs about"):
        relational._check_fits(data, "FastRGCNConv", settings)
    found = relational._measured(
        lambda: relational._stock(data, "FastRGCNConv", 1, settings), settings
    )
    assert found["training_ms"] is None


def test_a_real_graph_on_the_cpu_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triples = np.random.default_rng(0).integers(0, 4, (30, 3))
    np.savez(tmp_path / "umls.npz", train=triples)
    monkeypatch.setattr(steps, "traverse", reference.run)
    file = tmp_path / "out.json"
    done = CliRunner().invoke(app, [
        "bench", "relational", "--device", "cpu", "--data", str(tmp_path), "--graph", "umls",
        "--model", "rgcn", "--width", "8", "--repeats", "1", "--json", str(file),
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    (row,) = json.loads(file.read_text())["graphs"]
    assert (row["graph"], row["num_edges"]) == ("umls", 60)
    for host, layer in (("pyg", "PyG FastRGCNConv"), ("dgl", "DGL RelGraphConv")):
        assert (layer in row["ways"]) == hosts.installed(host)


def test_a_cpu_without_graphs_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relational, "real_graphs", lambda folder: [])
    refused = CliRunner().invoke(app, ["bench", "relational", "--device", "cpu"])
    assert refused.exit_code == 2 and "--data" in refused.output

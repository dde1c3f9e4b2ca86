"""The table and the chart show what was measured."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from gnn_backend.bench.resident import Measurement
from gnn_backend.demo import chart, runs
from gnn_backend.demo.results import Layer, Results, Training, table
from gnn_backend.demo.training import Outcome, Request

MIB = 2**20


def outcome(seconds: float, peak: int, **fields: object) -> Outcome:
    result = {
        "losses": [2.0, 1.25],
        "accuracy": {"train": 1.0, "val": 0.5, "test": 0.75},
        "test_roc_auc": 0.875,
        "seconds_per_step": seconds,
    }
    empty = {"accelerated": 0, "fallbacks": 0, "launches": 0, "reasons": {}, "differences": {}}
    return Outcome(**{"result": result, "peak_bytes": peak, **empty, **fields})  # type: ignore[arg-type]


@pytest.fixture
def results() -> Results:
    ours = outcome(
        0.25,
        96 * MIB,
        accelerated=6,
        fallbacks=2,
        launches=31,
        reasons={"hooks": 2},
        differences={"out": 1.5e-6, "att": 2.5e-6},
    )
    training = Training("PyG, Tolokers", "cpu", outcome(3.0, 2048 * MIB), ours)
    layer = Layer(
        "PyG GATv2Conv", "8 to 8", Measurement(512 * MIB, 1, 60.0), Measurement(MIB, 1, 5)
    )
    return Results([training], [layer], {"DGL, Cora": "pip install\n'gnn_backend[dgl]'"})


def rendered(results: Results) -> str:
    console = Console(width=132, record=True, file=io.StringIO())
    console.print(table(results))
    return console.export_text()


def test_table_pairs_stock_with_ours(results: Results) -> None:
    lines = rendered(results).splitlines()
    stock = next(line for line in lines if "PyG, Tolokers" in line)
    ours = next(line for line in lines if "31" in line)
    assert all(part in stock for part in ("1.2500", "75.00%", "3.00 s", "2.00 GiB", "0 / 0"))
    assert all(part in ours for part in ("250.0 ms", "12.0 x", "96 MiB", "6 / 2"))


def test_table_lists_every_difference_reason_and_missing_host(results: Results) -> None:
    text = rendered(results)
    for part in (
        "AUC 0.8750",
        "1.5e-06  out",
        "2.5e-06  att",
        "fell back: hooks (2)",
        "512 MiB",
        "12.0 x",
    ):
        assert part in text
    missing = next(line for line in text.splitlines() if "DGL, Cora" in line)
    assert "missing" in missing and "pip install" in missing
    assert "'gnn_backend[dgl]'" in text


def test_table_and_chart_say_where_each_run_was(results: Results, tmp_path: Path) -> None:
    (training,) = results.trainings
    results.trainings = [dataclasses.replace(training, device="cuda", stock_device="cpu")]
    assert "cuda; stock: cpu" in rendered(results)
    assert results.trainings[0].label == "PyG, Tolokers (cuda; stock: cpu)"
    assert training.label == "PyG, Tolokers"
    chart.save(results, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("device", "built", "why_not", "wanted"),
    [
        ("cuda", False, "", ("cuda", "cpu")),
        ("cuda:1", True, "built with CUDA", ("cuda:1", "cuda:1")),
        ("cuda", False, "another version", ("cpu", "cpu")),
        ("cpu", False, "", ("cpu", "cpu")),
    ],
)
def test_where_dgl_trains(
    device: str, built: bool, why_not: str, wanted: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, results: Results,
) -> None:  # fmt: skip
    pytest.importorskip("dgl", reason="DGL is not installed")
    from gnn_backend.adapters.dgl.residence import support

    monkeypatch.setattr(support, "has_cuda_build", lambda: built)
    monkeypatch.setattr(support, "why_not", lambda: why_not)
    monkeypatch.setattr(runs.hosts, "installed", lambda host: host == "dgl")
    asked = []

    def train(request: Request) -> Outcome:
        asked.append((request.accelerate, request.device))
        return results.trainings[0].ours

    monkeypatch.setattr(runs.training, "train", train)
    settings = runs.Settings(tmp_path, device=device, layers=False)
    (found,) = runs.run(settings, lambda line: None).trainings
    assert asked == [(False, wanted[1]), (True, wanted[0])]
    assert (found.device, found.stock_device) == wanted


def test_memory_that_is_not_known(results: Results, tmp_path: Path) -> None:
    (layer,) = results.layers
    unknown = dataclasses.replace(layer.stock, peak_bytes=None)
    results.layers = [dataclasses.replace(layer, stock=unknown)]
    assert "60.0 ms" in rendered(results) and "512 MiB" not in rendered(results)
    chart.save(results, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 10_000


def test_chart_is_a_png(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "made" / "chart.png"
    chart.save(results, path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 10_000


def test_missing_hosts_are_named_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runs.hosts, "installed", lambda host: False)
    found = runs.run(runs.Settings(tmp_path), lambda line: None)
    assert (found.trainings, found.layers) == ([], [])
    assert [("[dgl]" in text, "[pyg]" in text) for text in found.missing.values()] == [
        (True, False),
        (False, True),
    ]

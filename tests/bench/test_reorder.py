"""The study of reordering: what it measures, its tables, and what the model costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gnn_backend import datasets
from gnn_backend.bench import reorder, timing
from gnn_backend.bench.reorder import summary
from gnn_backend.cli.app import app
from gnn_backend.config import override
from gnn_backend.graph.reorder import METHODS


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Call what is timed once and say that it took 1, 2, ... milliseconds."""
    taken: list[float] = []

    def eager(call: Any, *_: Any, **__: Any) -> float:
        call()
        taken.append(float(len(taken) + 1))
        return taken[-1]

    monkeypatch.setattr(timing, "eager_ms", eager)
    return taken


def test_every_order_is_measured(
    times: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(datasets.GRIDS, "small", (6, 7))
    settings = reorder.Settings(device="cpu", widths=(16,), dim=16)
    with override(cpu_target="emulator"):
        document = reorder.run(["small:shuffled"], settings, lambda line: None)
    (row,) = document["graphs"]
    assert (row["graph"], row["num_nodes"], row["max_in_degree"]) == ("small:shuffled", 42, 4)
    assert set(row["orders"]) == {"none", *METHODS, "renumbered"}
    cases = {"sum, width 16", "max, width 16", "attention", "attention, forward+backward"}
    assert all(set(order["cases"]) == cases for order in row["orders"].values())
    assert len(times) == 6 * 4 + 2
    assert row["orders"]["renumbered"]["moving_ms"] == {"gather": 21.0, "scatter": 22.0}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(document))
    shown = CliRunner().invoke(app, ["bench", "show", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "small:shuffled" in shown.stdout and "renumbered" in shown.stdout


def test_the_cost_of_the_model() -> None:
    def cases(ms: float, predicted: float | None) -> dict[str, Any]:
        return {"cases": {"sum": {"ms": ms, "predicted_gain": predicted}}}

    orders = {"none": cases(3.0, 1.0), "degree": cases(2.5, 1.4), "rcm": cases(2.0, 1.3)}
    (found,) = summary({"orders": orders | {"renumbered": cases(1.0, 9.0)}})
    assert found == {"case": "sum", "best": "rcm", "gain": 1.5, "chosen": "degree", "regret": 0.25}
    small = {"none": cases(3.0, 1.0), "rcm": cases(2.0, 1.05)}
    (found,) = summary({"orders": small})
    assert (found["chosen"], found["regret"]) == ("none", 0.5)
    (found,) = summary({"orders": {"none": cases(3.0, None), "rcm": cases(4.0, None)}})
    assert (found["best"], found["chosen"], found["regret"]) == ("none", None, None)

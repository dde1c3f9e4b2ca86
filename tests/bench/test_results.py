"""The results that the documents quote can be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gnn_backend.cli.app import app

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
BENCHMARKS = [path for path in sorted(RESULTS.glob("*.json"))
              if "benchmark" in json.loads(path.read_text())]  # fmt: skip


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_kept_results_are_shown(path: Path) -> None:
    shown = CliRunner().invoke(app, ["bench", "show", str(path)])
    assert shown.exit_code == 0, shown.output
    document = json.loads(path.read_text())
    benchmark = document["benchmark"]
    rows = document[benchmark if benchmark in ("shapes", "layers", "wrappers") else "graphs"]
    assert rows
    for row in rows:
        assert row["layer" if benchmark == "wrappers" else "graph"] in shown.output


def test_there_are_results() -> None:
    assert len(BENCHMARKS) >= 2

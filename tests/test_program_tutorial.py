"""The tutorial's code runs as it stands, and is what ``emit`` takes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gnn_backend.cli.app import app

TUTORIAL = Path(__file__).parents[1] / "docs" / "programs.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)


def test_the_layer_of_the_tutorial(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    exec(compile(blocks()[0], str(TUTORIAL), "exec"), scope)
    assert scope["out"].shape == (3, 4)  # type: ignore[attr-defined]
    assert "(destination, edge type)" in capsys.readouterr().out


def test_what_the_layer_becomes(tmp_path: Path) -> None:
    layer, example = blocks()
    layer, call, _ = layer.partition("\nedge_index")
    file, graph = tmp_path / "layers.py", tmp_path / "graph.npz"
    file.write_text(f"{layer}\n\n\n{example}")
    np.savez(graph, triples=np.array([[0, 0, 1], [1, 1, 2], [2, 1, 0]]))
    shown = CliRunner().invoke(app, ["emit", f"{file}:gated", "--graph", str(graph)])
    assert call and shown.exit_code == 0, shown.output
    assert "@program\ndef gated(" in shown.stdout

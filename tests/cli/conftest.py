"""Running commands inside the test process, where torch and the hosts are already imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from gnn_backend.cli.app import app
from gnn_backend.datasets import uniform

Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Invoke:
    """``invoke("doctor", "--json")`` gives typer's result: exit_code, stdout, stderr."""
    runner = CliRunner()

    def call(*arguments: str | Path) -> Result:
        return runner.invoke(app, [str(a) for a in arguments], catch_exceptions=False)

    return call


@pytest.fixture
def invoke_json(invoke: Invoke) -> Callable[..., Any]:
    """The JSON document that a command prints; fails on any other output or exit code."""

    def call(*arguments: str | Path, exit_code: int = 0) -> Any:
        result = invoke(*arguments, "--json")
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)

    return call


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """An npz graph of 40 nodes and 300 edges, node 39 without in-edges."""
    edges = uniform(40, 39, 300).numpy().astype(np.int32)
    path = tmp_path / "graph.npz"
    np.savez(path, edge_index=edges, num_nodes=40)
    return path

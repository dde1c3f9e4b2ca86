"""The training scripts run as they stand, and one line is all that acceleration takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gnn_backend.bench import hosts
from gnn_backend.demo.training import ENABLE_LINE, STOCK_LINE, Request, train

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = {"dgl": "dgl_gatv2_cora.py", "pyg": "pyg_gatv2_tolokers.py"}
EPOCHS = ("--epochs", "3")


@pytest.fixture(params=SCRIPTS)
def host(request: pytest.FixtureRequest) -> str:
    if not hosts.installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture(scope="module")
def tolokers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The subgraph of the first 500 nodes."""
    file, count = np.load(EXAMPLES / "data" / "tolokers.npz"), 500
    inside = (file["edge_index"] < count).all(0)
    fields = {
        key: file[key][:count] for key in file.files if key not in ("edge_index", "num_nodes")
    }
    path = tmp_path_factory.mktemp("graphs") / "tolokers.npz"
    np.savez(path, edge_index=file["edge_index"][:, inside], num_nodes=count, **fields)
    return path


def arguments(host: str, tolokers: Path) -> tuple[str, ...]:
    return (*EPOCHS, "--graph", str(tolokers)) if host == "pyg" else EPOCHS


def test_one_line_differs_from_stock(host: str) -> None:
    text = (EXAMPLES / SCRIPTS[host]).read_text()
    assert text.count("gnn_backend") == ENABLE_LINE.count("gnn_backend")
    assert text.replace(ENABLE_LINE, STOCK_LINE).count("gnn_backend") == 1


def test_script_runs_by_itself_and_ends_with_its_result(host: str, tolokers: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / SCRIPTS[host], *arguments(host, tolokers), "--device", "cpu"],
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert len(result["losses"]) == 3 and result["losses"][-1] < result["losses"][0]
    assert set(result["accuracy"]) == {"train", "val", "test"}
    assert result["seconds_per_step"] > 0


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_same_losses_as_stock_on_our_kernels_alone(host: str, tolokers: Path) -> None:
    script = str(EXAMPLES / SCRIPTS[host])
    stock, ours = (train(Request(script, on, arguments(host, tolokers))) for on in (False, True))
    assert ours.result["losses"] == pytest.approx(stock.result["losses"], rel=1e-5)
    assert (stock.accelerated, stock.launches) == (0, 0)
    calls = 2 * (3 + 1)  # two layers; three epochs and the evaluation
    assert (ours.accelerated, ours.fallbacks, ours.reasons) == (calls, 0, {})
    assert ours.launches >= calls
    assert ours.differences and max(ours.differences.values()) <= 2e-5

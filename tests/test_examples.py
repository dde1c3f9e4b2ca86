"""The training scripts run as they stand, and one line is all that acceleration takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnn_backend.bench import hosts
from gnn_backend.config import config
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
@pytest.mark.thorough
def test_same_losses_as_stock_on_our_kernels_alone(host: str, tolokers: Path) -> None:
    script = str(EXAMPLES / SCRIPTS[host])
    stock, ours = (train(Request(script, on, arguments(host, tolokers))) for on in (False, True))
    assert ours.result["losses"] == pytest.approx(stock.result["losses"], rel=1e-5)
    assert (stock.accelerated, stock.launches) == (0, 0)
    calls = 2 * (3 + 1)  # two layers; three epochs and the evaluation
    assert (ours.accelerated, ours.fallbacks, ours.reasons) == (calls, 0, {})
    assert ours.launches >= calls
    assert ours.differences and max(ours.differences.values()) <= 2e-5


RELATIONAL = {
    "dgl": "dgl_link_prediction_fb15k237.py",
    "pyg": "pyg_node_classification_debian12.py",
}
SMALL = {
    "dgl": ("--width", "8", "--bases", "2", "--batch", "100", "--messages", "200"),
    "pyg": ("--width", "8"),
}


@pytest.fixture(scope="module")
def typed_graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Facts by shifts around a circle, and nodes whose section is how they are depended on."""
    folder, rng = tmp_path_factory.mktemp("typed"), np.random.default_rng(0)
    head, relation = rng.integers(0, 60, 400), rng.integers(0, 3, 400)
    facts = np.stack([head, relation, (head + 1 + relation) % 60], 1)
    np.savez(folder / "facts.npz", train=facts[:300], valid=facts[300:350], test=facts[350:])
    section = rng.integers(-1, 3, 200)
    tail = rng.integers(0, 200, 1500)
    triples = np.stack([rng.integers(0, 200, 1500), section[tail] + 1, tail], 1)
    np.savez(folder / "packages.npz", triples=triples, node_section=section, num_nodes=200)
    return {"dgl": folder / "facts.npz", "pyg": folder / "packages.npz"}


def run_relational(host: str, data: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, EXAMPLES / RELATIONAL[host], "--data", data, "--device", "cpu", *options],
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_relational_scripts_learn_the_same_stock_and_accelerated(
    host: str, typed_graphs: dict[str, Path]
) -> None:
    options = ("--epochs", "6", *SMALL[host], "--json")
    ours = run_relational(host, typed_graphs[host], *options)
    stock = run_relational(host, typed_graphs[host], *options, "--stock")
    assert ours["losses"] == pytest.approx(stock["losses"], rel=1e-4)
    assert ours["losses"][-1] < ours["losses"][0]
    assert ours["accelerated"] > 6 and ours["fallbacks"] == 0 == stock["accelerated"]


@pytest.mark.thorough
@pytest.mark.slow
def test_relational_scripts_beat_what_counting_gives(host: str) -> None:
    if config.test_data is None:
        pytest.skip("GNN_BACKEND_TEST_DATA is not set")
    name, epochs = {"dgl": ("fb15k_237", "8"), "pyg": ("debian12_packages", "30")}[host]
    found = run_relational(host, config.test_data / f"{name}.npz", "--epochs", epochs)
    if host == "dgl":
        assert found["ranks"]["R-GCN, DistMult"][0] > 3 * found["ranks"]["node popularity"][0]
    else:
        assert found["accuracy"]["test"] > 2 * found["baseline"]["test"]

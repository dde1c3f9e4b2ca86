"""Running a script with and without its enable line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnn_backend.demo.training import ENABLE_LINE, Request, load_script, train, train_here
from gnn_backend.errors import GNNBackendError, InvalidArgument

SCRIPT = f"""
import argparse, json
{ENABLE_LINE}
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=7)
parser.add_argument("--device")
parser.add_argument("--json", action="store_true")
args = parser.parse_args()
print("progress")
print(json.dumps({{"enabled": gnn_backend.is_enabled(), "epochs": args.epochs}}))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_stock_run_leaves_acceleration_off_and_keeps_the_arguments(script: Path) -> None:
    outcome = train_here(Request(str(script), accelerate=False, arguments=("--epochs", "3")))
    assert outcome.result == {"enabled": False, "epochs": 3}
    assert (outcome.accelerated, outcome.launches, outcome.differences) == (0, 0, {})
    assert outcome.peak_bytes >= 0


@pytest.mark.parametrize("count", [0, 2])
def test_script_must_hold_the_line_once(script: Path, count: int) -> None:
    script.write_text(f"{ENABLE_LINE}\n" * count)
    with pytest.raises(InvalidArgument, match=r"hold the enable line once.*got"):
        load_script(script, accelerate=True)


CORA = Path(__file__).parents[2] / "examples" / "dgl_gatv2_cora.py"


def check_against_stock(device: str) -> None:
    """The DGL script on a device, and stock on the CPU."""
    arguments = ("--epochs", "4")
    ours = train(Request(str(CORA), True, arguments, device))
    stock = train(Request(str(CORA), False, arguments))
    assert ours.accelerated == 10 and not ours.reasons  # two layers, trained and evaluated
    assert ours.differences and max(ours.differences.values()) < 2e-5
    # Dropout is drawn elsewhere on CUDA, and the first loss is that of barely trained weights.
    close = 1e-4 if device == "cpu" else 0.05
    assert ours.result["losses"] == pytest.approx(stock.result["losses"], rel=close)


@pytest.mark.thorough
def test_dgl_on_resident_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dgl", reason="DGL is not installed")
    monkeypatch.setenv("GNN_BACKEND_RESIDENCE_STANDIN", "1")
    check_against_stock("cpu")


@pytest.mark.gpu
def test_dgl_on_cuda() -> None:
    pytest.importorskip("dgl", reason="DGL is not installed")
    check_against_stock("cuda")


def test_failure_of_a_script_shows_its_last_lines(script: Path) -> None:
    script.write_text(f"{ENABLE_LINE}\nraise ValueError('no such data')\n")
    with pytest.raises(GNNBackendError, match="no such data"):
        train(Request(str(script), accelerate=False))

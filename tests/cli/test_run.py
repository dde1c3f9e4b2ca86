"""``run``: an unmodified script behaves as under plain Python, but accelerated."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.helpers import command, commands

PYG_SCRIPT = """
import sys
import helper_beside_the_script
import torch
from torch_geometric.nn import GATv2Conv

if __name__ == "__main__":
    torch.manual_seed(0)
    conv = GATv2Conv(4, 3, heads=2)
    out = conv(torch.randn(5, 4), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]]))
    print(sys.argv, __file__, __name__, helper_beside_the_script.value)
    print([round(v, 4) for v in out.sum(0).tolist()])
    sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "helper_beside_the_script.py").write_text("value = 42\n")
    path = tmp_path / "script.py"
    path.write_text(PYG_SCRIPT)
    return path


@pytest.mark.slow
def test_script_runs_as_under_python_and_is_counted(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = [str(script), "--profile", "-m", "x"]
    stock = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=elsewhere
    )
    ours = command("run", "--profile", *arguments, cwd=elsewhere)
    assert (stock.returncode, ours.returncode) == (7, 7)
    assert ours.stdout == stock.stdout
    row = next(line for line in ours.stderr.splitlines() if "pyg.GATv2Conv" in line)
    assert "1" in row.split()


def test_module_form(script: Path) -> None:
    pytest.importorskip("torch_geometric")
    done = command("run", "-m", "script", "--heads", "2", cwd=script.parent)
    assert done.returncode == 7
    first = done.stdout.splitlines()[0]
    assert "'--heads', '2'" in first and "__main__ 42" in first


FAILING = """
def fail():
    raise RuntimeError("from the script")
fail()
"""


def test_exception_shows_the_scripts_frames_and_the_profile(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    done = command("run", "--profile", "failing.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: from the script" in done.stderr
    assert "in fail" in done.stderr and "runpy" not in done.stderr
    assert "gnn_backend" not in done.stderr.split("RuntimeError")[0]
    assert "calls" in done.stderr.split("from the script")[-1].lower()


STRICT = """
import torch
from torch_geometric.nn import GATv2Conv
conv = GATv2Conv(4, 3, aggr="mean")
edges = torch.tensor([[0, 1], [1, 0]])
conv(torch.randn(2, 4), edges)
"""


def test_strict_mode_reaches_the_layers(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    (tmp_path / "edges.py").write_text(STRICT)
    done = command("run", "--mode", "strict", "edges.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "StrictFallbackError" in done.stderr and "aggr-changed" in done.stderr


NO_SCRIPT = [
    (["folder"], "can't find '__main__'"),
    (["data.npz"], "can't find '__main__'"),
    (["-m", "no_such_module_here"], "No module named"),
]


def test_what_is_no_script_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "data.npz", x=np.zeros(1))
    lines = [["run", *arguments] for arguments, _ in NO_SCRIPT]
    for (arguments, why), done in zip(
        NO_SCRIPT, commands(lines, imports="torch", cwd=tmp_path), strict=True
    ):
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: can't run '{arguments[-1]}': {why}")
        assert len(done.stderr.splitlines()) == 1


def test_errors_of_syntax_and_imports_are_the_scripts_own(tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("x = (\n")
    (tmp_path / "imports.py").write_text("import no_such_module_here\n")
    names = {"syntax.py": "SyntaxError", "imports.py": "ModuleNotFoundError"}
    found = commands([["run", name] for name in names], imports="torch", cwd=tmp_path)
    for (name, message), done in zip(names.items(), found, strict=True):
        assert done.returncode == 1
        assert message in done.stderr and name in done.stderr and "runpy" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "no such file"),
        (["--mode", "fast", "missing.py"], "'fast'"),
        ([], "Missing argument"),
    ],
)
def test_bad_usage(invoke: Callable[..., Any], arguments: list[str], message: str) -> None:
    result = invoke("run", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr and result.stdout == ""


def test_threads_that_outlive_the_script_are_accelerated(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import threading, time, gnn_backend\n"
        "def work():\n    time.sleep(0.5)\n    print(gnn_backend.is_enabled())\n"
        "threading.Thread(target=work).start()\n"
    )
    assert command("run", str(path)).stdout == "True\n"

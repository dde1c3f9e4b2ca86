"""Help and what is wrong with a call need neither torch nor a host, so they answer at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli.helpers import CHECKOUT, command

COMMANDS = ("run", "demo", "compare", "layers", "doctor", "kernels", "cache", "bench")

# As `python -m gnn_backend` does, but what is heavy cannot be imported.
SCRIPT = """
import runpy, sys
heavy = ("torch", "numba", "numpy", "scipy", "cupy", "matplotlib", "dgl", "torch_geometric")
sys.modules.update(dict.fromkeys(heavy))
runpy.run_module("gnn_backend", run_name="__main__")
"""


def light(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=os.environ | {"COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=CHECKOUT,
    )


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS), ["bench", "attention"]])
def test_help(arguments: list[str]) -> None:
    done = light(*arguments, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
    if not arguments:
        assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command"),
        (["run"], "Missing argument"),
        (["run", "missing.py"], "no such file"),
        (["run", "--mode", "fast", "x.py"], "--mode: got 'fast', expected one of auto, strict"),
        (["compare", "--graph", "g.npz", "--host", "jax"], "expected one of dgl, pyg"),
        (["compare", "--graph", "g.npz", "--device", "tpu"], "expected one of cpu, cuda"),
        (["compare", "--graph", "g.npz", "--dtype", "int8"], "expected one of float32"),
        (["compare", "--graph", "g.npz", "--heads", "0"], "--heads"),
        (["layers", "--host", "jax"], "expected one of dgl, pyg"),
        (["layers", "--device", "tpu"], "expected one of cpu, cuda"),
        (["cache", "erase"], "ACTION: got 'erase', expected one of info, clear"),
        (["demo", "--examples", "nowhere"], "no example scripts"),
        (["bench", "attention", "--device", "tpu"], "expected one of cuda, cpu"),
        (["bench", "attention", "--dtype", "int8"], "expected names among float32"),
        (["demo", "--device", "nodevice"], "--device: got 'nodevice', expected cpu, cuda or"),
        (["demo", "--out", "pyproject.toml/out"], "--out: cannot write to pyproject.toml/out"),
        (["bench", "attention", "--json", "README.md/x.json"], "--json: cannot write to README"),
        (["bench", "attention", "--json", "tests"], "--json: tests is a folder"),
        (["bench", "show", "missing.json"], "no such file"),
        (["bench", "show", "examples/data/cora.npz"], "is not JSON"),
        (["kernels", "--jobs", "-1"], "--jobs"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    done = light(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_despite_a_wrong_variable() -> None:
    assert light("compare", "--help", GNN_BACKEND_MODE="fast").returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", __file__],
        ["demo"],
        ["compare", "--graph", "g.npz"],
        ["layers"],
        ["doctor"],
        ["cache"],
        ["bench", "attention"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_wrong_variable_is_one_line(arguments: list[str]) -> None:
    done = command(*arguments, GNN_BACKEND_MODE="fast")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: environment variable GNN_BACKEND_MODE")
    assert "got 'fast', expected one of auto, strict, verify" in line and "unset it" in line
    assert done.stdout == ""

"""Help and what is wrong with a call need neither torch nor a host, so they answer at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.cli.helpers import Done, commands

COMMANDS = ("run", "demo", "compare", "layers", "doctor", "kernels", "emit", "cache", "bench")

# What is heavy cannot be imported.
WITHOUT_HEAVY = """
import sys
heavy = ("torch", "numba", "numpy", "scipy", "cupy", "matplotlib", "dgl", "torch_geometric")
sys.modules.update(dict.fromkeys(heavy))
"""


def light(lines: Sequence[Sequence[str]], **environment: str) -> list[Done]:
    return commands(lines, first=WITHOUT_HEAVY, COLUMNS="100", **environment)


HELP = [[], *([name] for name in COMMANDS), ["bench", "attention"]]


def test_help() -> None:
    for arguments, done in zip(HELP, light([[*a, "--help"] for a in HELP]), strict=True):
        assert done.returncode == 0, (arguments, done.stderr)
        assert "Usage" in done.stdout
        if not arguments:
            assert all(name in done.stdout for name in COMMANDS)


WRONG = [
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
    (["emit", "rgcn"], "Missing option '--graph'"),
    (["emit", "rgcn", "--graph", "g.npz", "--options", "fc"], "expected one of auto, vanilla, c"),
    (["emit", "rgcn", "--graph", "g.npz", "--types", "node"], "--types: got 'node'"),
    (["emit", "rgcn", "--graph", "g.npz", "--target", "hip"], "expected one of cuda, numba"),
    (["emit", "rgcn", "--graph", "g.npz", "--section", "ir,all"], "--section: got 'all'"),
    (["emit", "rgcn", "--graph", "g.npz", "--json", "tests"], "--json: tests is a folder"),
]


@pytest.fixture(scope="module")
def wrong() -> list[Done]:
    return light([arguments for arguments, _ in WRONG])


@pytest.mark.parametrize("case", range(len(WRONG)), ids=[" ".join(a) for a, _ in WRONG])
@pytest.mark.sampled(3)
def test_wrong_arguments(case: int, wrong: list[Done]) -> None:
    done, message = wrong[case], WRONG[case][1]
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_help_despite_a_wrong_variable() -> None:
    (done,) = light([["compare", "--help"]], GNN_BACKEND_MODE="fast")
    assert done.returncode == 0


NEED_CONFIG = [
    ["run", __file__],
    ["demo"],
    ["compare", "--graph", "g.npz"],
    ["layers"],
    ["doctor"],
    ["cache"],
    ["bench", "attention"],
]


def test_a_wrong_variable_is_one_line() -> None:
    # torch is imported once for all; without it each takes two seconds
    found = commands(NEED_CONFIG, imports="torch", GNN_BACKEND_MODE="fast")
    for arguments, done in zip(NEED_CONFIG, found, strict=True):
        assert done.returncode == 2, arguments
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: environment variable GNN_BACKEND_MODE")
        assert "got 'fast', expected one of auto, strict, verify" in line and "unset it" in line
        assert done.stdout == ""

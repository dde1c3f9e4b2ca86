"""``make ... PY=python3`` installs nothing; without it the environment is made first."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def plan(folder: Path, *arguments: str) -> str:
    """The commands that make would run."""
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        [make, "--dry-run", "--file", ROOT / "Makefile", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A folder with what the environment is made from, and no environment."""
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench"])
def test_given_interpreter_is_used_as_it_is(fresh: Path, target: str) -> None:
    commands = plan(fresh, target, "PY=python3")
    assert "python3 -m" in commands
    assert "pip" not in commands and "venv" not in commands


def test_environment_is_made_first_and_once(fresh: Path) -> None:
    commands = plan(fresh, "demo")
    assert commands.index("--constraint constraints.txt") < commands.index("-m gnn_backend demo")
    (fresh / ".venv").mkdir()
    (fresh / ".venv" / "ready").touch()
    assert "pip" not in plan(fresh, "demo")

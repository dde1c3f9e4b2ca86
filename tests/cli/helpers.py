"""Running the command line in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def command(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``python -m gnn_backend ARGUMENTS``; the package is found whatever the directory."""
    path = os.pathsep.join(p for p in (str(CHECKOUT), os.environ.get("PYTHONPATH")) if p)
    env = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200", **environment}
    return subprocess.run(
        [sys.executable, "-m", "gnn_backend", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        check=False,
        timeout=120,
    )


# Takes command lines from stdin and prints what became of each. Every one runs in a child as
# `python -m gnn_backend` would run it; what they import in common is imported once, before.
CHILDREN = """
import importlib, json, os, runpy, sys, tempfile
for name in os.environ.pop("PREPARED").split():
    importlib.import_module(name)
results = []
for arguments in json.load(sys.stdin):
    files = [tempfile.TemporaryFile("w+") for _ in range(2)]
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files, 1):
            os.dup2(file.fileno(), number)
        sys.argv[1:] = arguments
        try:
            runpy.run_module("gnn_backend", run_name="__main__")
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for file in files:
        file.seek(0)
    results.append([code, *(file.read() for file in files)])
json.dump(results, sys.stdout)
"""


@dataclass(frozen=True)
class Done:
    """How a command line ended."""

    returncode: int
    stdout: str
    stderr: str


def commands(
    lines: Sequence[Sequence[str | Path]],
    *,
    imports: str = "",
    first: str = "",
    cwd: Path = CHECKOUT,
    **environment: str,
) -> list[Done]:
    """``python -m gnn_backend`` with each of the argument lists, in children of one process.

    ``imports``: modules that are imported once for all; ``first``: code that goes before.
    """
    path = os.pathsep.join(p for p in (str(CHECKOUT), os.environ.get("PYTHONPATH")) if p)
    env = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200", **environment}
    done = subprocess.run(
        [sys.executable, "-c", first + CHILDREN],
        input=json.dumps([[str(a) for a in line] for line in lines]),
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**env, "PREPARED": imports},
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*result) for result in json.loads(done.stdout)]

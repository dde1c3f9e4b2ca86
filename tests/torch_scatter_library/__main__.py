"""``python -m tests.torch_scatter_library [--json OUT]``: the comparison, and its exit code."""

from __future__ import annotations

import argparse
import collections
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gnn_backend import config
from gnn_backend.adapters import torch_scatter as ours
from gnn_backend.bench import environment
from gnn_backend.runtime import emulator
from tests.torch_scatter_library import cases
from tests.torch_scatter_library.comparison import Outcome, compare, relative_error

SPARSE_TOLERANCE = 2e-6  # torch_sparse's results are float32


def main() -> int:
    """Compare and report; 0 if nothing differs that is not known to."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_scatter_library")
    parser.add_argument("--json", type=Path, help="where the result goes")
    chosen = parser.parse_args()
    if importlib.util.find_spec("torch_scatter") is None:
        print("torch_scatter is not installed: `make test-scatter` builds it", file=sys.stderr)
        return 2
    started = time.perf_counter()
    functions = {engine: compare_functions(engine) for engine in ("torch", "kernels")}
    sparse = compare_sparse()
    found = {
        "date": environment.document("", {}, None)["date"],
        "device": environment.cpu_report(),
        "versions": environment.versions(),
        "seconds": round(time.perf_counter() - started, 1),
        "functions": functions,
        "torch_sparse": sparse,
    }
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return report(found)


def compare_functions(engine: str) -> dict[str, Any]:
    """Every call on torch's operations or on the emulated kernels, by function."""
    import torch_scatter as library

    emulator._PLAIN_FLAGS = ("-O0",)  # hundreds of kernels, each of which runs briefly
    rows: dict[str, dict[str, Any]] = collections.defaultdict(
        lambda: {"calls": 0, "error": {}, "differ": []}
    )
    with config.override(cpu_target="emulator" if engine == "kernels" else "numba"):
        for call in cases.calls():
            outcome = _compare(library, call)
            row = rows[call.function]
            row["calls"] += 1
            kind = str(call.arguments()[0][0].dtype).removeprefix("torch.")
            row["error"][kind] = max(row["error"].get(kind, 0.0), outcome.error)
            if outcome.problem:
                row["differ"].append(f"{call.name}: {outcome.problem.rstrip('; ')}")
    return dict(rows)


def _compare(library: Any, call: cases.Call) -> Outcome:
    try:
        return compare(library, ours, call)
    except Exception as error:  # whatever one of them raises where the other answers
        return Outcome(problem=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")


def compare_sparse() -> dict[str, Any] | str:
    """torch_sparse over the library, patched, and over ours in its place."""
    if importlib.util.find_spec("torch_sparse") is None:
        return "not installed"
    with tempfile.TemporaryDirectory() as folder:
        files = {how: Path(folder) / how for how in ("library", "patched", "provided")}
        for how, file in files.items():
            command = [sys.executable, "-m", "tests.torch_scatter_library.sparse", str(file), how]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{how}: {done.stderr.strip().splitlines()[-1]}"
        found = {how: torch.load(file, weights_only=True) for how, file in files.items()}
    want = found["library"]["results"]
    summary: dict[str, Any] = {"results": len(want)}
    for how in ("patched", "provided"):
        got = found[how]["results"]
        errors = {name: relative_error(want[name], got[name]) for name in want}
        summary[how] = {
            "calls of ours" if how == "patched" else "ours imported": found[how]["calls"],
            "error": max(errors.values()),
            "differ": [f"{n}: {e:.1e}" for n, e in errors.items() if not e <= SPARSE_TOLERANCE],
        }
    return summary


def report(found: dict[str, Any]) -> int:
    """Print what was found; 0 if nothing differs."""
    bad = []
    for engine, rows in found["functions"].items():
        for name, row in rows.items():
            worst = ", ".join(f"{kind} {error:.1e}" for kind, error in row["error"].items())
            differ = len(row["differ"])
            print(f"{engine:8} {name:22} {row['calls']:4} calls, {differ} differ  {worst}")
            bad += [f"{engine}: {line}" for line in row["differ"]]
    sparse = found["torch_sparse"]
    print(f"torch_sparse: {sparse}")
    if isinstance(sparse, str):
        bad.append(f"torch_sparse: {sparse}")
    else:
        for how in ("patched", "provided"):
            bad += [f"torch_sparse, {how}: {line}" for line in sparse[how]["differ"]]
    print("\n".join(bad) or f"nothing differs, after {found['seconds']} s")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Run DGL's example models: see the package's description."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.dgl_examples import catalogue, comparison
from tests.dgl_examples.catalogue import Example
from tests.dgl_examples.comparison import Run, Verdict
from tests.dgl_examples.worker import Request

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(__file__).with_name("examples.yaml")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.dgl_examples", description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, help="of DGL's repository")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of these examples")
    parser.add_argument("--device", choices=("cpu", "cuda", "standin"), default="cuda",
                        help="of our run; standin: the CPU in the place of CUDA")  # fmt: skip
    parser.add_argument("--steps", type=int, help="losses to compare from the start")
    parser.add_argument("--seed", type=int, default=0, help="of both runs")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one run")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--examples", type=Path, default=EXAMPLES, help="the list of examples")
    found = parser.parse_args()
    found.scripts = (found.checkout / "examples" / "pytorch").resolve()
    if not found.scripts.is_dir():
        parser.error(
            f"--checkout: no examples/pytorch in it; got {found.checkout}, expected a checkout of "
            "DGL's repository at the tag of the installed version"
        )
    if found.steps is not None and found.steps < 1:
        parser.error(f"--steps: got {found.steps}, expected 1 or more")
    return found


def main() -> int:
    chosen = arguments()
    examples = catalogue.read(chosen.examples)
    if unknown := set(chosen.only) - {example.id for example in examples}:
        known = ", ".join(example.id for example in examples)
        print(f"--only: got {', '.join(sorted(unknown))}, expected some of {known}",
              file=sys.stderr)  # fmt: skip
        return 2
    examples = tuple(e for e in examples if not chosen.only or e.id in chosen.only)
    if chosen.device == "cuda" and not _has_cuda():
        print("no CUDA device: give --device standin or --device cpu", file=sys.stderr)
        return 2
    started = time.perf_counter()
    verdicts = compare_all(examples, chosen)
    report(verdicts, chosen, round(time.perf_counter() - started, 1))
    return 0 if verdicts and all(verdict.passed for verdict in verdicts) else 1


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def compare_all(examples: tuple[Example, ...], chosen: argparse.Namespace) -> list[Verdict]:
    """Run every example twice, ``chosen.jobs`` processes at a time."""
    with ThreadPoolExecutor(chosen.jobs) as pool:
        pending = [
            [pool.submit(run, example, mode, chosen) for mode in ("stock", chosen.device)]
            for example in examples
        ]
        return [
            comparison.judge(
                example, *(run.result() for run in runs), chosen.device,
                chosen.steps or example.steps,
            )
            for example, runs in zip(examples, pending, strict=True)
        ]  # fmt: skip


def run(example: Example, mode: str, chosen: argparse.Namespace) -> Run:
    """Run one example in a process and a folder of its own."""
    extra = example.cuda if mode == "cuda" else ()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "record.json"
        request = Request(
            script=str(chosen.scripts / example.path),
            output=str(output),
            mode=mode,
            arguments=example.arguments + extra,
            data=example.data,
            packages=example.packages,
            names_cuda=example.names_cuda,
            dropout=example.dropout,
            seed=chosen.seed,
        )
        command = [sys.executable, "-m", "tests.dgl_examples.worker"]
        try:
            done = subprocess.run(
                [*command, json.dumps(dataclasses.asdict(request))],
                cwd=folder, env=_environment(mode, folder), capture_output=True, text=True,
                timeout=chosen.timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Run(124, "", f"no end after {chosen.timeout} s", {})
        record = json.loads(output.read_text()) if output.exists() else {}
    print(f"{example.id}: {mode}: exit code {done.returncode}, "
          f"{record.get('seconds', '-')} s", file=sys.stderr)  # fmt: skip
    return Run(done.returncode, done.stdout, done.stderr, record)


def _environment(mode: str, folder: str) -> dict[str, str]:
    """That of a process in ``folder``: paths given relative to this one's folder are resolved."""
    from gnn_backend.config import get_config

    config = get_config()
    path = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    changed = {
        "PYTHONPATH": _resolved(path),
        "DGL_DOWNLOAD_DIR": folder,
        "GNN_BACKEND_CACHE_DIR": _resolved([config.cache_dir]),
        "GNN_BACKEND_KERNEL_PATH": _resolved(config.kernel_path),
        "GNN_BACKEND_TEST_DATA": _resolved([config.test_data] if config.test_data else []),
    }
    if mode != "cuda":
        changed["CUDA_VISIBLE_DEVICES"] = ""  # scripts take CUDA where they find it
    return os.environ | changed


def _resolved(paths: Iterable[str | Path]) -> str:
    return os.pathsep.join(str(Path(path).resolve()) for path in paths)


def report(verdicts: list[Verdict], chosen: argparse.Namespace, seconds: float) -> None:
    """Print the table, and write the JSON."""
    from rich.console import Console

    if chosen.json is not None:
        found = {
            "mode": chosen.device,
            "seconds": seconds,
            "passed": sum(verdict.passed for verdict in verdicts),
            "failed": sum(not verdict.passed for verdict in verdicts),
            "examples": [verdict.to_dict() for verdict in verdicts],
        }
        chosen.json.write_text(json.dumps(found, indent=1))
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    console.print(comparison.table(verdicts, chosen.device))
    passed = sum(verdict.passed for verdict in verdicts)
    print(f"{passed} of {len(verdicts)} passed in {seconds} s")


if __name__ == "__main__":
    raise SystemExit(main())

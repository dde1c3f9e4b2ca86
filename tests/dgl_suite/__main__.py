"""Run DGL's own tests: see the package's description."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

from tests.dgl_suite import expected
from tests.dgl_suite.guard import Shard
from tests.dgl_suite.summary import merge_files, report, succeeded

EXPECTED = Path(__file__).with_name("expected.yaml")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.dgl_suite", description=__doc__)
    parser.add_argument("paths", nargs="*", help="below tests/python; by default common, pytorch")
    parser.add_argument("--checkout", type=Path, help="of DGL's repository")
    parser.add_argument("--shard", default="1/1", help="NUMBER/COUNT, from 1")
    parser.add_argument("--standin", action="store_true", help="the CPU in the place of CUDA")
    parser.add_argument("--stock", action="store_true", help="acceleration off, on the CPU")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--expected", type=Path, default=EXPECTED, help="known failures")
    parser.add_argument("-k", default="", help="as in pytest")
    parser.add_argument("--timeout", type=int, default=60,
                        help="seconds for one test, where pytest-timeout is installed")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show each failure")
    parser.add_argument("--merge", nargs="+", type=Path, metavar=("OUT", "IN"),
                        help="run nothing; join shards' results and print one summary")  # fmt: skip
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)  # of the inner process
    found = parser.parse_args()
    if found.merge:
        if len(found.merge) < 2:
            parser.error("--merge: no results to join; got one file, expected OUT and then IN")
        return found
    if found.checkout is None:
        parser.error("the following arguments are required: --checkout")
    if not (found.checkout / "tests" / "python").is_dir():
        parser.error(
            f"--checkout: no tests/python in it; got {found.checkout}, expected a checkout of "
            "DGL's repository at the tag of the installed version"
        )
    if found.standin and found.stock:
        parser.error("--standin and --stock exclude each other")
    return found


def prepare_children(mode: str) -> None:
    """Let processes that tests start load DGL and run as this one does."""
    os.environ["DGL_SUITE_MODE"] = mode
    os.environ["GNN_BACKEND_RESIDENCE_STANDIN"] = str(int(mode == "standin"))
    paths = [str(EXPECTED.parent / "children"), str(EXPECTED.parents[2])]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])


def watch(chosen: argparse.Namespace, mode: str) -> int:
    """Run the shard in processes of its own, and report."""
    known = expected.read(chosen.expected)

    def reason(test: str) -> str | None:
        found = known.of(test, mode)
        return None if found is None else found.reason

    shard = Shard(sys.argv[1:], chosen.timeout, reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started must not outlive it
    try:
        shard.run()
    finally:
        if chosen.json and shard.found:
            chosen.json.write_text(json.dumps(shard.found, indent=1))
    if not shard.found.get("mode"):
        print(f"no results: {shard.found.get('aborted', 'nothing ran')}", file=sys.stderr)
        return 2
    report(shard.found)
    return 0 if succeeded(shard.found) else 1


def run(chosen: argparse.Namespace, mode: str) -> int:
    """Run the tests of the shard that are left in this process."""
    prepare_children(mode)
    os.environ["DGLTESTDEV"] = "gpu" if mode == "cuda" else "cpu"
    os.environ["DGLBACKEND"] = "pytorch"
    import gnn_backend  # noqa: F401, I001 (makes DGL importable)
    import pytest

    from tests.dgl_suite.guard import Progress
    from tests.dgl_suite.plugin import Suite

    root = (chosen.checkout / "tests" / "python").resolve()
    sys.path.insert(0, str(root.parent))  # their helpers are top-level modules there
    sys.path.append(str(root))  # from where processes import the tests that started them
    number, count = (int(part) for part in chosen.shard.split("/"))
    folder = chosen.progress.resolve()
    known = expected.read(chosen.expected)
    suite = Suite(mode, (number, count), known, root, folder / "part.json")
    paths = [str(root / path) for path in chosen.paths or ("common", "pytorch")]
    os.chdir(root.parent.parent)
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", f"--rootdir={root}"]
    options += ["-c", os.devnull, "--tb=short" if chosen.verbose else "--tb=no", "-k", chosen.k]
    options += ["-W", "ignore"]
    if importlib.util.find_spec("pytest_timeout") is not None:
        options += [f"--timeout={chosen.timeout}"]
    plugins = [suite, Progress(folder, suite.name)]
    return int(pytest.main([*options, *paths], plugins=plugins))


def main() -> int:
    chosen = arguments()
    if chosen.merge:
        return 0 if merge_files(chosen.merge[0], chosen.merge[1:]) else 1
    mode = "standin" if chosen.standin else "stock" if chosen.stock else "cuda"
    if mode == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("no CUDA device: give --standin or --stock", file=sys.stderr)
            return 2
    return watch(chosen, mode) if chosen.progress is None else run(chosen, mode)


if __name__ == "__main__":
    raise SystemExit(main())

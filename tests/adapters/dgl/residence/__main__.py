"""Run these tests on the GPU: ``python -m tests.adapters.dgl.residence [--json OUT] [-k TEXT]``.

Needs pytest and DGL's wheel, no further plugin. With ``--standin`` those of the CPU run instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from tests.results import Results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adapters.dgl.residence")
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("-k", default="", help="as in pytest")
    parser.add_argument("--standin", action="store_true", help="the CPU in the place of the GPU")
    chosen = parser.parse_args()
    if not chosen.standin and not torch.cuda.is_available():
        print("0 passed, 0 failed: no CUDA device")
        return 0
    here = Path(__file__).parent
    results = Results(chosen.json and chosen.json.resolve(), device=not chosen.standin)
    marks = "not gpu" if chosen.standin else "gpu"
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "-m", marks, "-k", chosen.k]
    code = pytest.main([*options, "-W", "ignore", str(here)], plugins=[results])
    found = results.results()
    print(f"{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped in "
          f"{found['seconds']} s {found['aborted']}")  # fmt: skip
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())

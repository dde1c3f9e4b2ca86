"""Sums over tiles with a small mistake are caught: each mutant of the kernel fails a check."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor

from gnn_backend.graph import block_sparse as tiles
from gnn_backend.runtime import emulator as emulator_module
from tests.ops.test_mutants import kernels, mutants_cache, mutate
from tests.runtime.block_cases import GRAPHS
from tests.runtime.sparse.sums import Sum, check_sum, close, run

pytestmark = pytest.mark.sampled(9)

__all__ = ["kernels", "mutants_cache"]

MUTANTS = {
    "which pairs are edges": (r"now\.has\(n, i\) \?", "true ?"),
    "the next tile": (r"load\(min\(index \+ 1, last\)\)", "load(last)"),
    "to look for NaN": (r"ALL_LANES, sums\.any_nan\(\)", "ALL_LANES, false"),
    "whose degree a row is divided by": (r"args\.lse \+ row", "args.lse + own.first"),
    "to divide the lower row": (r"factor\[0\], factor\[1\]\);\n    }\n    store",
                                "factor[0], factor[0]);\n    }\n    store"),
    "whose weight an entry has": (r"weight\.plus\(n, i, 0\.f\)", "weight.plus(0, i, 0.f)"),
}  # fmt: skip


def spoil(x: Tensor) -> None:
    """Rows 0 and up: the pad columns of tiles gather row 0."""
    x[0, 0, 2], x[20, 0, 5] = torch.inf, torch.nan


def check_kernels() -> None:
    """Raise AssertionError unless everything that the mutants break is right."""
    bf16 = torch.bfloat16
    with mock.patch.object(tiles, "CHUNKS", (2,)):
        check_sum(Sum(GRAPHS["hubs"], bf16, 1, 32, 0, "mean"))
        check_sum(Sum(GRAPHS["hubs"], bf16, 2, 16, 2))
    special = Sum(GRAPHS["block model"], bf16, 1, 16)
    close(run(special, "tiles", spoil), run(special, "rows", spoil), bf16)


def test_the_sources_pass(kernels: Path) -> None:
    check_kernels()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail(name: str, kernels: Path) -> None:
    mutate(kernels, *MUTANTS[name])
    with pytest.raises((AssertionError, emulator_module.EmulatorError)):
        check_kernels()

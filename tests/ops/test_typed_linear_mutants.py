"""Kernels of the typed linear with a small mistake are caught: each mutant must fail a check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from gnn_backend.runtime import emulator as emulator_module
from gnn_backend.runtime import gemm
from tests.ops.test_mutants import kernels, mutants_cache, mutate
from tests.ops.typed_products import check_gradient, check_product, problem

pytestmark = pytest.mark.sampled(6)

__all__ = ["kernels", "mutants_cache"]

PRODUCT = {
    "barriers": (r"__syncthreads\(\);", ""),
    "the wait for copies": (r"wait_copies<STAGES - 2>\(\);", ""),
    "one of the waits": (r"wait_copies<STAGES - 2>", "wait_copies<STAGES - 1>"),
    "the mask of values past the end": (r"\(to, from, live > 0\)", "(to, from, true)"),
    "the slots of columns": (r"piece_at\(Part<L>::slot\(at\), piece\)", "piece_at(at, piece)"),
    "whose weight": (r"tile\.segment \* args\.weight_heads", "0 * args.weight_heads"),
    "which head has the weight": (r"args\.weight_heads > 1 \? head : 0", "0"),
    "which head has the row": (r"head \* args\.inner \+ first", "first"),
    "the numbers of rows": (r": __ldg\(list \+ place\)", ": 0"),
    "the scale": (r"scale \* part\.value", "1.f * part.value"),
    "the second row of a product": (r"2 \* \(i % 2\) \+ k % 2", "k % 2"),
}  # fmt: skip
GRADIENT = {
    "barriers": (r"__syncthreads\(\);", ""),
    "the wait for copies": (r"wait_copies<STAGES - 2>\(\);", ""),
    "the scale": (r"left\[i\] \*= scale\[r\];", ";"),
    "the scale on tensor cores": (r"factor\[q\] = scale\[row\];", ";"),
    "the second half of a stage": (r"entry\.at\(i, k\) \+= handed\[.*?\];", ";"),
    "the last warp of the sum": (r"w < WARPS; w", "w < WARPS - 1; w"),
    "the last chunk": (r"type \+ 1\) \* args\.heads", "type + 1) * args.heads - 1"),
    "which of two values of a word": (r"upper \? a >> 16", "!upper ? a >> 16"),
    "the halves of a weight's columns": (r"4 \* half \+ g / 2", "g / 2"),
    "the numbers of rows": (r": __ldg\(list \+ place\)", ": 0"),
}  # fmt: skip


def check_kernels(check: Callable[..., None]) -> None:
    """In float32 and on tensor cores, with every index, heads, and chunks that are not full."""
    every = {"rows": True, "out_rows": True, "scale": True}
    with mock.patch.object(gemm, "_SHORTEST_CHUNK", 32):
        for dtype in (torch.float32, torch.bfloat16):
            check(problem([9, 0, 262], 72, 44, 2, each=True, dtype=dtype, **every))


@pytest.mark.parametrize("check", [check_product, check_gradient])
def test_the_sources_pass(check: Callable[..., None], kernels: Path) -> None:
    check_kernels(check)


@pytest.mark.parametrize(
    ("check", "mutant"),
    [pytest.param(check, mutant, id=f"{check.__name__}-{name}")
     for check, mutants in ((check_product, PRODUCT), (check_gradient, GRADIENT))
     for name, mutant in mutants.items()],
)  # fmt: skip
def test_mutants_fail(check: Callable[..., None], mutant: tuple[str, str], kernels: Path) -> None:
    mutate(kernels, *mutant)
    with pytest.raises((AssertionError, emulator_module.EmulatorError)):
        check_kernels(check)

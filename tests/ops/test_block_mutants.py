"""Kernels of attention over tiles with a small mistake are caught: each mutant fails a check."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch

from gnn_backend.graph import block_sparse as tiles
from gnn_backend.runtime import emulator as emulator_module
from tests.ops.test_mutants import kernels, mutants_cache, mutate
from tests.runtime.block_cases import GRAPHS, check, problem, reference, run, with_bias

pytestmark = pytest.mark.sampled(9)

__all__ = ["kernels", "mutants_cache"]

MUTANTS = {
    "the bitmap": (r"return mask >> \(4 \* n \+ i\) & 1;", "return true;"),
    "which byte of a bitmap is a lane's": (r"first \* WARP \+ at\.lane", "first * WARP"),
    "rescaling the sums": (r"sums\.scale\(factor\[0\], factor\[1\]\);", ""),
    "that a maximum is of a row": (r"quad_max\(most\[half\]\)", "most[half]"),
    "the second row of a lane": (r"upper\.word\[w\]\), Core::operand\(lower",
                                 "upper.word[w]), Core::operand(upper"),
    "the order of columns in a sum": (r"a\[0\], a\[2\], a\[1\], a\[3\]", "a[0], a[1], a[2], a[3]"),
    "the upper value of a word": (r"lo >> 16 \| \(hi & 0xffff0000u\)", "(lo & 0xffffu) | hi << 16"),
    "the tile after the next": (r"min\(index \+ 2, last\)", "min(index + 1, last)"),
    "the slot of a partial": (r"\(i64\)task\.slot \* TILE", "(i64)0"),
    "that rows without edges have no sum": (r"empty \? 0\.f : 1\.f / all\.sum", "1.f / all.sum"),
    "the rows of a split window": (r"first \* width \+ column", "index * width + column"),
    "the mean of a softmax gradient": (r"\(product\.x\[n\]\[i\] - stats\[i / 2\]\.y\)",
                                       "product.x[n][i]"),
    "whose statistics a column has": (r"stats\[n\]\[i & 1\]", "stats[n][i / 2]"),
    "the scale of a gradient": (r"key_grad\.scale\(args\.scale, args\.scale\)",
                                "key_grad.scale(1.f, 1.f)"),
    "to look at the edges alone": (r"if \(live\[i / 2\]\) x", "x"),
    "whose biases a lane has": (r"tile\) \* WARP \+ at\.lane\) \* 2", "tile) * WARP) * 2"),
    "the bias of the second product": (r"__ldg\(from \+ 1\)", "__ldg(from)"),
    "to look for NaN": (r"any_nan\(\)\)\)", "any_nan() && false))"),
}  # fmt: skip


def check_kernels() -> None:
    """Raise AssertionError unless everything that the mutants break is right."""
    for dtype in (torch.bfloat16, torch.float32):
        with mock.patch.object(tiles, "CHUNKS", (1,)):  # windows of two tiles are split
            check(problem(GRAPHS["hubs"], 2, 32, dtype))
            check(with_bias(problem(GRAPHS["duplicates"], 1, 16, dtype), dtype))
        special = problem(GRAPHS["block model"], 1, 16, dtype)
        special.v[3, 0, 2] = float("inf")
        got, (want, _) = run(special), reference(special)
        assert torch.equal(got["out"].isfinite(), want["out"].isfinite())
        steep = problem(GRAPHS["hubs"], 1, 16, dtype)
        steep.q *= 20  # so that maxima rise by more than the slack
        got, (want, _) = run(steep), reference(steep)
        error = (got["out"].double() - want["out"]).abs().max()
        assert error < 0.05 * want["out"].abs().max()


@pytest.fixture(autouse=True)
def allowing_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnn_backend.runtime.block_sparse.cannot", lambda *_: None)


def test_the_sources_pass(kernels: Path) -> None:
    check_kernels()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail(name: str, kernels: Path) -> None:
    mutate(kernels, *MUTANTS[name])
    with pytest.raises((AssertionError, emulator_module.EmulatorError)):
        check_kernels()

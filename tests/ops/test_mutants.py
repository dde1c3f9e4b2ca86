"""Kernels with a small mistake are caught: each mutant of the sources must fail a check.

The checks are those of the other files in this folder, on one problem whose rows split, merge and
end within a batch. The unchanged sources must pass them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from gnn_backend import config
from gnn_backend.runtime import emulator as emulator_module
from gnn_backend.runtime import selection
from tests.ops.scenarios import beside_a_masked_source, beside_an_overflow, with_ties
from tests.ops.support import attention, check_problem, problem, reference, run

pytestmark = pytest.mark.sampled(6)

#: What is forgotten: what stands in the sources (a regular expression), what the mutant has.
MUTANTS = {
    "the mask of loads past the end": (r"!masked \|\| first \+ u < count", "true"),
    "the mask of edges past the end": (r"!MASKED \|\| batch\.first \+ u < task\.count", "true"),
    "the mask of logits past the end": (r"if \(MASKED && batch", "if (false && batch"),
    "rescaling the accumulator": (r"acc\[i\] \*= factor;", ";"),
    "that a maximum may be -inf": ("= LOWEST", "= negative_infinity()"),
    "the slot of a partial": (r"task\.row : task\.slot\)", "task.row : 0)"),
    "the last warp of a merge": ("w < MERGE_WARPS;", "w < MERGE_WARPS - 1;"),
    "barriers": (r"__syncthreads\(\);", ""),
    "one step of a butterfly": (r"o = S::LANES / 2; o; o >>= 1", "o = S::LANES / 4; o; o >>= 1"),
    "one group of the parameter sum": (
        r"o = S::GROUP; o < WARP; o <<= 1\) x \+=", "o = 2 * S::GROUP; o < WARP; o <<= 1) x +="
    ),
    "that an overflow has no weight": (r"!\(score <= LARGEST\)", "score != score"),
    "the mean of a softmax gradient": (r"held\[i\]\) - delta\)", "held[i]))"),
    "that a masked edge has no weight": (r"!\(score <= LARGEST\) && .*\? 0\.f :", ""),
    "the slope of leaky-relu at zero": (r"> 0\.f\) grad", ">= 0.f) grad"),
    "whose product a quad's lane holds": (r"lane % 4 == quad / 2", "lane % 4 == 0"),
    "the second half of a product": (r"second\[3\] : second\[2\]", "second[2] : second[3]"),
    "where the second halves of a parameter are": (r"second \? make_uint2", "!second ? make_uint2"),
    "the magnitude of packed sums": (r"MASK = 0x7fff7fffu", "MASK = 0xffffffffu"),
}  # fmt: skip


def mutate(kernels: Path, pattern: str, replacement: str) -> None:
    count = 0
    for path in kernels.rglob("*.cuh"):
        text, found = re.subn(pattern, replacement, path.read_text())
        path.write_text(text)
        count += found
    assert count, f"nothing matches {pattern}: bring the mutant up to date"


def check_kernels() -> None:
    """Raise AssertionError unless everything that the mutants break is right."""
    check_problem(problem())
    check_problem(with_ties(2, 64, 0.2))
    check_problem(problem(dtype=torch.bfloat16))
    with mock.patch.object(selection, "chunk_for", lambda *_: 2):
        check_problem(problem())  # hubs of more slots than a warp merges alone
    assert not run(beside_a_masked_source(2, 64, -1.0))["x_src"][0].any()
    assert not run(beside_an_overflow(2, 64))["x_src"][0].any()
    # Source 0 is read by few rows; the logits of a source of 1e30 are -inf.
    for sources, value in ((slice(1), float("nan")), (slice(18), 1e30)):
        special = problem()
        with torch.no_grad():
            special.operands["x_src"][:, :, 0] = 0
            special.operands["x_src"][sources, :, 0] = value
            special.operands["x_dst"][:, :, 0] = 0
            special.operands["att"][:, 0] = -1e10
        want = reference(special, torch.float32)["out"]
        assert torch.allclose(attention(special), want, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.fixture(scope="session")
def mutants_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants-cache")


@pytest.fixture
def kernels(
    tmp_path: Path, mutants_cache: Path, monkeypatch: pytest.MonkeyPatch, unoptimised: None
) -> Iterator[Path]:
    """A copy of the kernel sources that the emulator compiles, into a cache for mutants alone."""
    folder = tmp_path / "kernels"
    shutil.copytree(emulator_module.KERNELS, folder)
    monkeypatch.setattr(emulator_module, "KERNELS", folder)
    monkeypatch.setattr(selection, "chunk_for", lambda *_: 8)
    emulator_module.headers_digest.cache_clear()
    # The libraries of the one before have the same sources, but not the same headers.
    emulator_module._load.cache_clear()
    with config.override(cache_dir=mutants_cache):
        yield folder
    monkeypatch.undo()
    emulator_module.headers_digest.cache_clear()


def test_the_sources_pass(kernels: Path) -> None:
    check_kernels()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail(name: str, kernels: Path) -> None:
    mutate(kernels, *MUTANTS[name])
    with pytest.raises((AssertionError, emulator_module.EmulatorError)):
        check_kernels()

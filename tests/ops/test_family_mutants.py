"""Kernels with a small mistake in what edges bring are caught, as in ``test_mutants``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gnn_backend.runtime import emulator as emulator_module
from tests.ops.family import call
from tests.ops.family_checks import check, shaped
from tests.ops.support import edges_with_hubs
from tests.ops.test_mutants import kernels, mutants_cache, mutate  # noqa: F401 (fixtures)

pytestmark = pytest.mark.sampled(6)


def everything() -> None:
    check(call("dot all", weights=True), 0.3)


def scalars() -> None:
    check(call("gat logit"))


def blocks_of_heads() -> None:
    check(shaped("dot query", 8, 32, 4, torch.float32))


def masked_by_a_large_number() -> None:
    c = call("dot bias", 2, 8)
    with torch.no_grad():
        c.operands["edge_bias"][edges_with_hubs()[0][1] == 10] = -1e9
        c.operands["q_dst"].zero_()
    check(c)


#: What is forgotten: pattern, what the mutant has, and the check that must fail.
MUTANTS = {
    "whose head a random word is": (r"four >> \(first_head & 3\)", "four", everything),
    "a round of Philox": ("PHILOX_ROUNDS = 7", "PHILOX_ROUNDS = 6", everything),
    "the caller's order": (r"if \(edge\.ids == nullptr\)", "if (true)", everything),
    "dropout in backward": (r"return kept\(i, product\);", "return product;", everything),
    "the weights' gradients in a row's mean": (
        r"delta \+= args\.edge\.row_sums\[stat\]", "delta += 0.f", everything
    ),
    "which partials are the second table's": (
        r"store_partial<S>\(args\.second_partial", "store_partial<S>(args.partial", everything
    ),
    "the scale of a query's gradient": (r"grad_query\[i\] \*= args\.scalar\[0\]", "", everything),
    "the mask of logits' sums": (
        r"if \(!MASKED \|\| batch\.first \+ ds\.index\(at\.within, i\) < task\.count\)", "", scalars
    ),
    "the slope of a term": (r"return z > 0\.f \? 1\.f : p\.slope", "return 1.f", scalars),
    "heads before these": (r"if \(live && at\.head >= S::HEADS\)", "if (false)", blocks_of_heads),
    "the sum beside a large maximum": (
        r"weight_of\(score - value, log_sum\)", "weight_of(score, value + log_sum)",
        masked_by_a_large_number,
    ),
}  # fmt: skip


def test_the_sources_pass(kernels: Path) -> None:  # noqa: F811
    for check_of in (everything, scalars, blocks_of_heads, masked_by_a_large_number):
        check_of()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail(name: str, kernels: Path) -> None:  # noqa: F811
    pattern, replacement, check_of = MUTANTS[name]
    mutate(kernels, pattern, replacement)
    with pytest.raises((AssertionError, emulator_module.EmulatorError)):
        check_of()

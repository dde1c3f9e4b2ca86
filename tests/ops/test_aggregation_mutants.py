"""Aggregation kernels with a small mistake are caught: each mutant must fail its check.

The checks are those of the other files in this folder, on problems whose rows split, merge and end
within a batch. The unchanged sources must pass all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from gnn_backend.runtime import emulator as emulator_module
from gnn_backend.runtime.sparse import rows
from tests.ops.aggregations import (
    all_worst,
    case,
    case_of,
    check_case,
    largest_of_zero,
    rows_of_equals,
    shares_of_rounded_ties,
    with_specials,
)
from tests.ops.test_mutants import kernels, mutants_cache, mutate

pytestmark = pytest.mark.sampled(9)

__all__ = ["kernels", "mutants_cache"]


def pna() -> None:
    check_case(case(("mean", "std", "max"), (8,), (8,), message="add_relu"))


def extremes() -> None:
    check_case(largest_of_zero(case(("max", "min"), (4,))))


def weighted() -> None:
    check_case(case("max", (2, 4), (2,), message="mul", ties="first"))


def products() -> None:
    check_case(case_of(("mul", "copy", (6,), None, torch.float32, "even", "propagate")))


def softmax() -> None:
    check_case(case_of(("softmax", "copy", (4,), None, torch.float32, "even", "propagate")))


def specials() -> None:
    check_case(with_specials(case("max", (4,))))
    check_case(with_specials(case("max", (4,), ties="first")))


def worst() -> None:
    for nan in ("propagate", "skip"):
        check_case(all_worst(nan, "first"))


CHECKS = (pna, extremes, weighted, products, softmax, specials, worst, shares_of_rounded_ties,
          rows_of_equals)  # fmt: skip
#: What is forgotten: what stands in the sources, what the mutant has, and the check that fails.
MUTANTS: dict[str, tuple[str, str, Callable[[], None]]] = {
    "the mask of edges past the end": (r"if \(!live\(d\)\) continue;", "", extremes),
    "where batches are whole": (r"first \+ L::EDGES \* DEPTH <= task\.count", "true", extremes),
    "that a better message ends the ties": (
        r"ties \* \(before == best \? \(C\)1 : \(C\)0\)", "ties", extremes
    ),
    "how many ties a lane merges": (r"count\(other\.best, other\.ties\)", "count(other.best, 1)",
                                    extremes),
    "that torch counts the initial 0": (r"e\.best == 0 \? \(C\)1 : \(C\)0", "(C)0", extremes),
    "that extremes compare stored values": (
        r"M::EXACT \? m : as_stored<typename L::T>\(m\)", "m", shares_of_rounded_ties
    ),
    "that the first wins side by side": (r"equal && other\.place < place", "false", weighted),
    "that a NaN is kept": (r"!kept && best == best", "!kept && m == m", specials),
    "that the worst message is one": (r"place == nowhere<Id>\(\)\) place = first",
                                         "false) {}", worst),
    "that an empty row has none": (r"empty = count == 0;", "empty = false;", extremes),
    "that nothing won": (r"!S::has\(NAN_WINS\) && unbeaten", "false", worst),
    "the number of the kept edge": (
        r"return ids == nullptr \? place : __ldg\(ids \+ place\);", "return place;", weighted
    ),
    "the mean of a row": (r"\(to\.mean, \[&\]\(const S& s\) \{ return s\.sum \* share",
                          "(to.mean, [&](const S& s) { return s.sum", pna),
    "the degree of a split row": (r"\(C\)args\.degrees\[which\]", "(C)7", pna),
    "where deviations begin": (r"variance < floor \? floor : variance", "variance", rows_of_equals),
    "the slot of statistics": (r"\(i64\)task\.slot \* args\.width;", "0;", extremes),
    "one step over the edges side by side": (
        r"o = L::LANES; o < L::GROUP; o <<= 1\)\s*#pragma unroll\s*for \(int v = 0; v < K; v\+\+\) "
        r"state", "o = 2 * L::LANES; o < L::GROUP; o <<= 1)\nfor (int v = 0; v < K; v++) state",
        extremes,
    ),
    "the last warp of a merge": (r"w < MERGE_WARPS; w", "w < MERGE_WARPS - 1; w", extremes),
    "zeros in the product of the others": (r"rest \*= m == 0 \? \(C\)1 : m;", "rest *= m;",
                                           products),
    "the gradient of a lone zero": (r"m\[v\] == 0 \? lone", "m[v] != m[v] ? lone", products),
    "the weights so far": (r"keep = higher \? small : \(C\)1", "keep = (C)1", softmax),
    "the weights of a split row": (r"weights \* mine \+", "weights +", softmax),
    "the variance of the temperature": (r"s\.weights - mean \* mean", "s.weights", softmax),
    "the slope of a softmax": (r"\(1 \+ temperature\[v\] \* \(m\[v\] - out\[v\]\)\)", "1", softmax),
    "which columns are extreme": (r"hits\[d\] >> v & 1 \?", "hits[d] ?", extremes),
    "which edge is kept": (r"key\[d\]\.value\[v\] == edge", "key[d].value[v] >= 0", weighted),
    "the gradient of a NaN": (r"out\[v\] == out\[v\] \? \(C\)0 : out\[v\]", "(C)0", specials),
    "the slope of a square": (r"quadratic\[d\]\.value\[v\] \* m\[v\]", "quadratic[d].value[v]",
                              pna),
    "the derivative by the row": (r"M::by_x\(x\[v\], e\[v\], dm\[v\]\)", "dm[v]", weighted),
    "the derivative by the edge": (r"M::by_edge\(x\[d\]\[v\], e\[d\]\[v\], dm\[v\]\)", "dm[v]",
                                   weighted),
    "where relu is flat": (r"x \+ edge <= 0 \? \(C\)0 : grad", "grad", pna),
    "which head of a gradient": (r"\* heads \+ part\]", "* heads]", weighted),
    "the columns of a head": (r"SHARED \? \(i64\)part \* columns : 0", "0", weighted),
    "one step over the lanes of a head": (
        r"o = L::LANES / 2; o; o >>= 1\) shared", "o = L::LANES / 4; o; o >>= 1) shared",
        lambda: check_case(case("max", (2, 8), (2,), message="mul")),
    ),
}  # fmt: skip


def at_all_chunks(check: Callable[[], None]) -> None:
    """With tasks of several batches, and so short that hubs have more slots than a warp merges."""
    for chunk in (40, 3):
        with mock.patch.object(rows, "chunk_of", lambda *_, chunk=chunk: chunk):
            check()


def test_the_sources_pass(kernels: Path) -> None:
    for check in CHECKS:
        at_all_chunks(check)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail(name: str, kernels: Path) -> None:
    pattern, replacement, check = MUTANTS[name]
    mutate(kernels, pattern, replacement)
    with pytest.raises((AssertionError, emulator_module.EmulatorError)):
        at_all_chunks(check)

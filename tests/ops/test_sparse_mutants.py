"""Kernels of the sparse operators with a small mistake are caught: each mutant must fail a check.

The checks are those of the other files in this folder, on one problem whose rows split, merge and
end within a batch. The unchanged sources must pass them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from gnn_backend.graph import Graph
from gnn_backend.ops.edge_softmax import edge_softmax
from gnn_backend.runtime import emulator as emulator_module
from gnn_backend.runtime.sparse import rows
from tests.ops.operators import (
    check_edge_softmax,
    check_gsddmm,
    check_gspmm,
    draw,
    softmax_oracle,
)
from tests.ops.support import edges_with_hubs
from tests.ops.test_mutants import kernels, mutants_cache, mutate

pytestmark = pytest.mark.sampled(6)

__all__ = ["kernels", "mutants_cache"]

SPMM = {
    "the mask of loads past the end": (
        r"live = first \+ d \* L::EDGES \+ at\.edge < task\.count;", "live = true;"
    ),
    "that an edge past the end cannot win": (r"live && Order<MAX>::better", "Order<MAX>::better"),
    "that zeros may not be divided": (r"EXACT && !live \? \(C\)0 : x\[v\]", "x[v]"),
    "that the first of equals wins in a row": (
        r"MAX \? a > b : a < b", "MAX ? a >= b : a <= b"
    ),
    "that the first of equals wins side by side": (
        r"other == total\[v\] && place < where\[v\]", "false"
    ),
    "the slot of an argument": (r"whole \? task\.row : task\.slot;", "whole ? task.row : 0;"),
    "the last warp of a merge": (r"w < MERGE_WARPS; w", "w < MERGE_WARPS - 1; w"),
    "barriers": (r"__syncthreads\(\);", ""),
    "one step over the edges side by side": (
        r"o = L::LANES; o < L::GROUP; o <<= 1", "o = 2 * L::LANES; o < L::GROUP; o <<= 1"
    ),
    "the mean of a whole row": (r"args\.mean && task", "false && task"),
    "the mean of a split row": (r"args\.divisor != nullptr", "false"),
    "which edge of a batch": (r"batch \+ d \* L::EDGES : d %", "batch : d %"),
    "the next ids": (r"fetch\(first \+ STEP\);", ""),
    "which head": (r"column / \(int\)dim", "0"),
}  # fmt: skip
SDDMM = {
    "the mask of writes past the end": (
        r"if \(first \+ d \* L::EDGES \+ at\.edge < own\.task\.count\)\s*store", "store"
    ),
    "one step of a butterfly": (r"o = H::HEAD_LANES / 2; o;", "o = H::HEAD_LANES / 4; o;"),
    "which head of a dot product": (r": table\.offsets == nullptr \? at\.head", ": true ? 0"),
    "whose row": (r"if constexpr \(TARGET == SOURCE\) return at_row\(base, source, stride\);",
                  "if constexpr (TARGET == SOURCE) return at_row(base, 0, stride);"),
}  # fmt: skip
SOFTMAX = {
    "rescaling the sum": (r"sum \*= exponential\(top - most\);", ";"),
    "that a maximum may be -inf": (
        r"\? \(C\)-1\.79\d+e308 : \(C\)-LARGEST",
        "? (C)negative_infinity() : (C)negative_infinity()",
    ),
    "the last warp of a softmax merge": (
        r"w < MERGE_WARPS; w", "w < MERGE_WARPS - 1; w"
    ),
    "edges that are not there": (r"live >> d & 1 \? exponential", "true ? exponential"),
    "that a task may be a part of a row": (r"own\.task\.slot >= 0", "false"),
    "the slots side by side": (r"slot \+= parts", "slot += 2 * parts"),
    "whose statistics": (r"__ldg\(args\.edge_rows \+ edge\)", "0"),
    "rows that one warp merges": (r"end > begin && !together", "false && !together"),
}  # fmt: skip
EDGES, NUM_SRC, NUM_DST = edges_with_hubs()
COUNT = EDGES.shape[1]


def hubs() -> Graph:
    return Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)


def check_all_chunks(check: Callable[[], None]) -> None:
    """With tasks of one batch, and with tasks of several."""
    for chunk in (4, 40):
        with mock.patch.object(rows, "chunk_of", lambda *_, chunk=chunk: chunk):
            check()


def check_spmm() -> None:
    heads = draw(NUM_SRC, (2, 4), torch.float32), draw(COUNT, (2, 1), torch.float32)
    check_gspmm(hubs(), EDGES, "mul", "max", *heads)
    check_gspmm(hubs(), EDGES, "div", "mean", *heads)
    wide = draw(NUM_SRC, (2, 64), torch.float32), draw(COUNT, (2, 1), torch.float32)
    check_gspmm(hubs(), EDGES, "mul", "sum", *wide)
    check_gspmm(hubs(), EDGES, "copy_lhs", "max", draw(NUM_SRC, (), torch.float32), None)
    check_gspmm(hubs(), EDGES, "copy_lhs", "sum", draw(NUM_SRC, (128,), torch.float32), None)


def check_sddmm() -> None:
    lhs, rhs = draw(NUM_SRC, (2, 8), torch.float32), draw(NUM_DST, (2, 8), torch.float32)
    for op in ("add", "dot"):
        check_gsddmm(hubs(), EDGES, op, lhs, rhs, ("u", "v"))


def check_softmax() -> None:
    logits = 10 * draw(COUNT, (3,), torch.float32)
    check_edge_softmax(hubs(), EDGES, logits, logits.flip(0), "dst")
    wide = draw(COUNT, (20,), torch.float32)  # few slots side by side, so that a hub takes a block
    check_edge_softmax(hubs(), EDGES, wide, wide.flip(0), "dst")
    logits[(EDGES[1] == 3) & (torch.arange(COUNT) % 3 > 0), 0] = -torch.inf
    logits[(EDGES[1] == 7).nonzero()[0], 1] = -torch.inf
    want = softmax_oracle(EDGES, NUM_DST, logits, 1)
    assert torch.allclose(edge_softmax(hubs(), logits), want, rtol=1e-5, atol=1e-6)


CHECKS = [(check_spmm, SPMM), (check_sddmm, SDDMM), (check_softmax, SOFTMAX)]


def test_the_sources_pass(kernels: Path) -> None:
    for check, _ in CHECKS:
        check_all_chunks(check)


@pytest.mark.parametrize(
    ("check", "mutant"),
    [pytest.param(check, m, id=name) for check, mutants in CHECKS for name, m in mutants.items()],
)
def test_mutants_fail(check: Callable[[], None], mutant: tuple[str, str], kernels: Path) -> None:
    mutate(kernels, *mutant)
    with pytest.raises((AssertionError, emulator_module.EmulatorError)):
        check_all_chunks(check)

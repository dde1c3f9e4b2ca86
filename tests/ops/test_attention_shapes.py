"""Output and every gradient against the float64 twin over heads, widths, dtypes and slopes."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.ops.attention import gatv2_attention
from tests.ops.support import NAMES, TABLE, attention, check_problem, gradients, problem

pytestmark = pytest.mark.sampled(30)

_IDS = [f"h{h}-d{d}-{str(t).removeprefix('torch.')}-slope{s}" for h, d, t, s in TABLE]


@pytest.mark.usefixtures("emulator", "splitting")
@pytest.mark.parametrize(("heads", "dim", "dtype", "slope"), TABLE, ids=_IDS)
def test_emulator(heads: int, dim: int, dtype: torch.dtype, slope: float) -> None:
    check_problem(problem(heads, dim, dtype, slope=slope))


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize(("heads", "dim", "dtype", "slope"), TABLE, ids=_IDS)
def test_numba(heads: int, dim: int, dtype: torch.dtype, slope: float) -> None:
    check_problem(problem(heads, dim, dtype, slope=slope))
    check_problem(problem(heads, dim, torch.float64, slope=slope))


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0, 1.5, -0.3])
@pytest.mark.parametrize(("heads", "dim"), [(2, 64), (3, 7)])
def test_slopes(heads: int, dim: int, slope: float, target: str, splitting: None) -> None:
    check_problem(problem(heads, dim, slope=slope, seed=1))


def test_the_slope_is_a_fifth_by_default(target: str) -> None:
    p = problem(3, 7)
    assert torch.equal(gatv2_attention(p.graph, *(p.operands[n] for n in NAMES)), attention(p))


@pytest.mark.parametrize(("heads", "dim"), [(0, 7), (3, 0), (0, 0)])
def test_rows_of_no_width(heads: int, dim: int, target: str) -> None:
    p = problem(heads, dim)
    out = attention(p)
    assert out.shape == (29, heads, dim)
    for name, grad in gradients(out, p).items():
        assert grad.shape == p.operands[name].shape


@pytest.mark.usefixtures("emulator", "splitting")
def test_more_head_blocks_than_the_grid_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks stride over the heads, and merge blocks over the columns, where a grid ends."""
    monkeypatch.setattr("gnn_backend.runtime.plan.MAX_GRID_Y", 2)
    check_problem(problem(8, 33, seed=2))

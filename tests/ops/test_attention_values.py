"""Values that break softmax: NaN, infinities, masked logits, large logits, ties at zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gnn_backend.graph import Graph
from tests.ops.scenarios import (
    POISONS,
    beside_a_masked_source,
    beside_an_overflow,
    large_logits,
    masked,
    poisoned,
    same_places,
    with_ties,
)
from tests.ops.support import (
    attention,
    check_problem,
    problem,
    reference,
    run,
)

pytestmark = pytest.mark.sampled(5)

SHAPES = [(2, 64), (3, 7)]


@pytest.mark.parametrize("name", POISONS)
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_not_finite_as_stock(name: str, heads: int, dim: int, target: str, splitting: None) -> None:
    p = poisoned(name, heads, dim)
    with torch.no_grad():
        got = attention(p)
    want = reference(p, torch.float32)["out"]
    same_places(got, want)
    assert got.isfinite().any()


@pytest.mark.parametrize("name", ["NaN in a source", "NaN in a destination", "-inf in a source"])
def test_gradients_of_other_rows_stay_right(name: str, target: str, splitting: None) -> None:
    """A gradient is NaN at most where stock's is, and close elsewhere."""
    p = poisoned(name, 2, 64)
    got, want = run(p), reference(p, torch.float32)
    for operand in ("x_src", "x_dst"):
        assert want[operand].isnan().any() and not want[operand].isnan().all()
        finite = ~want[operand].isnan()
        torch.testing.assert_close(
            got[operand][finite], want[operand][finite], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_a_masked_source(heads: int, dim: int, sign: float, target: str, splitting: None) -> None:
    """Weight exactly 0, gradient as stock; a row of masked sources alone is NaN as stock."""
    p = masked(heads, dim, [5], sign)
    out = attention(p).detach()
    same_places(out, reference(p, torch.float32)["out"])
    assert out[3].isfinite().all()


@pytest.mark.parametrize(("heads", "dim"), [(2, 64), (2, 32), (1, 128)])
def test_gradient_beside_an_overflow(emulator: None, heads: int, dim: int) -> None:
    p = beside_an_overflow(heads, dim)
    got = run(p)
    got["att"] = got["att"][..., 1:]  # in column 0 it is 0 times infinity, as in stock
    assert all(value.isfinite().all() for value in got.values())
    assert not got["x_src"][0].any()
    assert got["x_src"][1:].any()


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_gradient_beside_a_masked_source(
    heads: int, dim: int, sign: float, target: str, splitting: None
) -> None:
    p = beside_a_masked_source(heads, dim, sign)
    got, want = run(p), reference(p, torch.float32)
    assert all(w.isfinite().all() for w in want.values())
    assert not got["x_src"][0].any()
    for name, value in want.items():
        same_places(got[name][..., 1:], value[..., 1:])


@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_rows_whose_logits_are_all_masked(
    heads: int, dim: int, target: str, splitting: None
) -> None:
    p = masked(heads, dim, list(range(37)))
    with torch.no_grad():
        got = attention(p)
    rows = p.graph.by_dst.indptr.diff() > 0
    assert got[rows].isnan().all() and not got[~rows].any()


@pytest.mark.parametrize("first", [True, False])
def test_a_chunk_of_masked_logits(first: bool, target: str, splitting: None) -> None:
    """The merge skips a chunk that holds nothing but -inf, first or last."""
    src = torch.arange(16) if first else torch.arange(16).flip(0)
    edges = torch.stack([src, torch.zeros(16, dtype=torch.int64)])
    p = problem(2, 64, edges=(edges, 16, 1))
    with torch.no_grad():
        p.operands["x_src"][:8, :, 0] = 1e30
        p.operands["x_src"][8:, :, 0] = 0
        p.operands["x_dst"][:, :, 0] = 0
        p.operands["att"][:, 0] = -1e10
        out = attention(p)
    alone = problem(2, 64, edges=(edges[:, src >= 8], 16, 1))
    alone = alone.with_operands(**p.operands)
    with torch.no_grad():
        torch.testing.assert_close(out, attention(alone), rtol=1e-5, atol=1e-6)
    assert out.isfinite().all()


@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("shape", SHAPES)
def test_large_logits(size: float, shape: tuple[int, int], target: str, splitting: None) -> None:
    """Two sources tie at the top or the bottom of logits that reach 1e4 in size."""
    p, want = large_logits(*shape, size)
    torch.testing.assert_close(attention(p)[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("slope", [0.2, 1.5, -0.3])
def test_ties_at_zero(slope: float, target: str, splitting: None) -> None:
    """x_src + x_dst is exactly 0 at a quarter of the places: the derivative there is the slope."""
    p = with_ties(2, 64, slope)
    source = p.operands["x_src"][p.graph.by_dst.indices.long()]
    assert ((source + p.operands["x_dst"][3]) == 0).float().mean() > 0.2
    check_problem(p)


def test_equal_logits_average(target: str) -> None:
    graph = Graph.from_csr(torch.tensor([0, 4]), torch.arange(4), 4)
    p = problem(3, 7, edges=(torch.stack([torch.arange(4), torch.zeros(4).long()]), 4, 1))
    p.graph = graph
    with torch.no_grad():
        p.operands["att"].zero_()
        torch.testing.assert_close(attention(p)[0], p.operands["x_src"].mean(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_accumulate_in_float32(
    dtype: torch.dtype, target: str, split_at: Callable[[int], None]
) -> None:
    """290 equal rows of 1000: a 16-bit sum of weights or values would end far from 1000."""
    split_at(1000)
    edges = torch.stack([torch.arange(290) % 37, torch.zeros(290, dtype=torch.int64)])
    p = problem(2, 64, dtype, edges=(edges, 37, 1))
    with torch.no_grad():
        p.operands["x_src"].fill_(1000)
        assert (attention(p) == 1000).all()

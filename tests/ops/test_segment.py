"""Reductions over segments and scattered sums on the emulator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.ops.segment import scatter_add, segment_reduce, segment_reduce_backward
from tests.ops.operators import DTYPES, REDUCES, close, draw, reduced, winners

pytestmark = [pytest.mark.usefixtures("unoptimised"), pytest.mark.sampled(5)]
LENGTHS = torch.tensor([0, 3, 1, 0, 70, 9, 8, 1, 0])
OFFSETS = torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)])
COUNT = int(OFFSETS[-1])
ROWS = torch.repeat_interleave(torch.arange(len(LENGTHS)), LENGTHS)


@pytest.mark.parametrize("shape", [(), (3,), (8,), (2, 64)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCES)
def test_reductions(op: str, dtype: torch.dtype, shape: tuple[int, ...], splitting: None) -> None:
    x = draw(COUNT, shape, dtype)
    out, arg = segment_reduce(op, x, OFFSETS)
    edges = torch.stack([ROWS, ROWS])
    want = reduced(edges, len(LENGTHS), op, x.double())
    close(out, want, dtype)
    assert (arg is not None) == (op in ("max", "min"))
    if arg is not None:
        place = winners(edges, len(LENGTHS), want, x.double(), torch.arange(COUNT))
        assert torch.equal(arg, torch.where(want.isinf(), -1, place))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_argument_dtype(dtype: torch.dtype) -> None:
    _, arg = segment_reduce("max", torch.ones(COUNT, 2), OFFSETS.to(dtype))
    assert arg is not None and arg.dtype == dtype


@pytest.mark.parametrize("op", ["max", "min"])
def test_nothing_wins(op: str, split_at: Callable[[int], None]) -> None:
    """Segments of NaN and of the worst infinity, whole and split."""
    worst = -torch.inf if op == "max" else torch.inf
    for chunk in (8, 1000):
        split_at(chunk)
        for value in (worst, torch.nan):
            x = torch.ones(COUNT, 3)
            x[ROWS == 4, 0] = value
            out, arg = segment_reduce(op, x, OFFSETS)
            assert arg is not None and arg[4, 0] == -1 and out[4, 0] == worst
            assert (arg[4, 1:] >= 0).all() and out[4, 1:].eq(1).all()


@pytest.mark.parametrize("op", REDUCES)
def test_no_rows(op: str) -> None:
    out, arg = segment_reduce(op, torch.ones(0, 2), torch.zeros(4, dtype=torch.int64))
    worst = {"max": -torch.inf, "min": torch.inf}.get(op, 0.0)
    assert torch.equal(out, torch.full((3, 2), worst))
    assert arg is None or arg.eq(-1).all()
    assert segment_reduce(op, torch.ones(0, 2), torch.zeros(1).long())[0].shape == (0, 2)
    assert segment_reduce(op, torch.ones(COUNT, 0), OFFSETS)[0].shape == (len(LENGTHS), 0)


@pytest.mark.parametrize("op", ["max", "min"])
def test_backward(op: str) -> None:
    x = torch.randn(COUNT, 3, requires_grad=True)
    out, arg = segment_reduce(op, x.detach(), OFFSETS)
    grad = torch.randn(len(LENGTHS), 3)
    index = ROWS[:, None].expand(-1, 3)
    want = torch.zeros(len(LENGTHS), 3).scatter_reduce(
        0, index, x, "amax" if op == "max" else "amin", include_self=False
    )
    (expected,) = torch.autograd.grad(want, x, grad)
    assert arg is not None and out.shape == grad.shape
    assert torch.equal(segment_reduce_backward(grad, arg, COUNT), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (16,)])
def test_scatter_add(dtype: torch.dtype, shape: tuple[int, ...], splitting: None) -> None:
    generator = torch.Generator().manual_seed(0)
    index = torch.cat([torch.full((50,), 3), torch.randint(0, 17, (60,), generator=generator)])
    x = draw(110, shape, dtype)
    want = torch.zeros(20, *shape, dtype=torch.float64).index_add(0, index, x.double())
    for kind in (torch.int32, torch.int64):
        close(scatter_add(x, index.to(kind), 20), want, dtype)


def test_scatter_add_of_nothing() -> None:
    assert not scatter_add(torch.ones(0, 2), torch.zeros(0).long(), 3).any()
    assert scatter_add(torch.ones(0, 2), torch.zeros(0).long(), 0).shape == (0, 2)


@pytest.mark.parametrize("index", [[0, 1, 3], [-1, 0, 0]])
def test_scatter_add_out_of_range(index: list[int]) -> None:
    with pytest.raises(InvalidArgument, match="index: out of range"):
        scatter_add(torch.ones(3, 2), torch.tensor(index), 3)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (torch.tensor([0, 4, 2]), "not the bounds"),
        (torch.tensor([0, 4]), "not the bounds"),
        (torch.tensor([-1, 2]), "not the bounds"),
        (torch.tensor([0.0, 2.0]), "offsets: wrong dtype"),
        (torch.zeros(0, dtype=torch.int64), "offsets: empty"),
    ],
)
def test_bad_offsets(offsets: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        segment_reduce("sum", torch.ones(3, 2), offsets)

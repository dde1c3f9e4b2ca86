"""Groups of an index on the emulator: reductions, softmax, and what they keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gnn_backend.ops.groups import Groups
from gnn_backend.ops.segment import segment_reduce
from tests.ops.operators import DTYPES, REDUCES, close, draw, reduced, winners

pytestmark = pytest.mark.usefixtures("unoptimised")
LENGTHS = torch.tensor([0, 3, 1, 0, 70, 9, 8, 1, 0])
SORTED = torch.repeat_interleave(torch.arange(len(LENGTHS)), LENGTHS)
COUNT, GROUPS = len(SORTED), len(LENGTHS)
SHUFFLED = SORTED[torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))]


def grouped(ascending: bool) -> tuple[torch.Tensor, Groups]:
    index = SORTED if ascending else SHUFFLED
    return index, Groups.from_index(index, GROUPS, ascending=ascending)


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("shape", [(), (3,), (8,)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", REDUCES)
def test_reductions(
    op: str, dtype: torch.dtype, shape: tuple[int, ...], ascending: bool, splitting: None
) -> None:
    index, groups = grouped(ascending)
    x = draw(COUNT, shape, dtype)
    out, arg = groups.reduce(op, x)
    edges = torch.stack([index, index])
    want = reduced(edges, GROUPS, op, x.double())
    close(out.view(want.shape), want, dtype)
    assert (arg is not None) == (op in ("max", "min"))
    if arg is not None:
        place = winners(edges, GROUPS, want, x.double(), torch.arange(COUNT))
        assert torch.equal(arg.view(place.shape).long(), torch.where(want.isinf(), -1, place))


@pytest.mark.parametrize("chunk", [1, 3, 40, 1000])
@pytest.mark.parametrize("ascending", [True, False])
def test_softmax(ascending: bool, chunk: int, split_at: Callable[[int], None]) -> None:
    split_at(chunk)
    index, groups = grouped(ascending)
    x = draw(COUNT, (3,), torch.float32).requires_grad_()
    grad = x.detach().flip(0)
    top = torch.full((GROUPS, 3), -torch.inf)
    top.scatter_reduce_(0, index[:, None].expand(-1, 3), x.detach(), "amax")
    e = (x - top[index]).exp()
    want = e / torch.zeros(GROUPS, 3).index_add(0, index, e)[index]
    out = groups.softmax(x.detach())
    close(out, want.detach().double(), torch.float32)
    (expected,) = torch.autograd.grad(want, x, grad)
    close(groups.softmax_backward(out, grad), expected.double(), torch.float32)


def test_offsets_with_gaps_and_beyond() -> None:
    x = draw(10, (2,), torch.float32)
    out, _ = Groups.from_offsets(torch.tensor([2, 5, 5, 9]), 10).reduce("sum", x)
    want, _ = segment_reduce("sum", x, torch.tensor([2, 5, 5, 9]))
    assert torch.equal(out, want)
    outside = Groups.from_offsets(torch.tensor([-3, 50, 4, 10]), 10)
    assert outside.indptr.tolist() == [0, 10, 10, 10], "never read past the end"


def test_nothing() -> None:
    empty = Groups.from_index(torch.zeros(0, dtype=torch.long), 3, ascending=True)
    assert torch.equal(empty.reduce("sum", torch.ones(0, 2))[0], torch.zeros(3, 2))
    none = Groups.from_index(torch.zeros(0, dtype=torch.long), 0, ascending=True)
    assert none.reduce("max", torch.ones(0, 2))[0].shape == (0, 2)


@pytest.mark.parametrize("bad", [-1, GROUPS])
def test_index_out_of_range(bad: int) -> None:
    index = SORTED.clone()
    index[5] = bad
    with pytest.raises(RuntimeError, match=f"0 to {GROUPS - 1}"):
        Groups.from_index(index, GROUPS, ascending=False)


def test_counts_and_bytes() -> None:
    _, groups = grouped(False)
    assert torch.equal(groups.counts().long(), LENGTHS)
    before = groups.nbytes()
    groups.rows(16)
    assert groups.nbytes() > before > 0
    assert groups.rows(16) is groups.rows(16)

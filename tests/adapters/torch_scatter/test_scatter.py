"""The scatter functions against plain torch in float64, with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnn_backend.adapters import torch_scatter
from gnn_backend.errors import InvalidArgument
from gnn_backend.profile import profile
from tests.adapters.torch_scatter import oracle

pytestmark = pytest.mark.sampled(9)

REDUCTIONS = ("sum", "mean", "mul", "max", "min")
SORTED = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 1, 3, 3, 4])
SHUFFLED = SORTED[torch.tensor([4, 9, 1, 0, 11, 3, 6, 10, 2, 8, 5, 7])]
E, N = len(SORTED), 6  # nothing goes to 2 and 5

#: Shape of the source, dimension, and the index's shape.
LAYOUTS = {
    "list": ((E,), -1, (E,)),
    "rows": ((E, 3), 0, (E,)),
    "rows of four": ((E, 2, 2), 0, (E, 1)),
    "last of two": ((3, E), -1, (E,)),
    "middle": ((2, E, 3), 1, (E,)),
    "middle, each block its own": ((2, E, 3), 1, (2, E)),
    "middle, from the end": ((2, E, 3), -2, (2, E, 1)),
    "each value its own": ((E, 3), 0, (E, 3)),
    "last of three": ((2, 2, E), 2, (E,)),
}


def index_of(shape: tuple[int, ...], dim: int, ascending: bool) -> Tensor:
    """An index of this shape whose rows along ``dim`` differ."""
    base = SORTED if ascending else SHUFFLED
    if len(shape) == 1:
        return base.clone()
    along = dim % len(shape) if len(shape) > 1 and shape[dim % len(shape)] == E else shape.index(E)
    others = [n for d, n in enumerate(shape) if d != along]
    rows = [base if k % 2 == 0 else base.flip(0) if not ascending else base.clamp(max=3)
            for k in range(int(torch.tensor(others).prod()))]  # fmt: skip
    return torch.stack(rows, -1).reshape(E, *others).movedim(0, along).contiguous()


def function(op: str) -> Callable[..., Tensor]:
    found = getattr(torch_scatter, f"scatter_{op}")
    return (lambda *a, **k: found(*a, **k)[0]) if op in ("max", "min") else found


def source(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    """Values that all differ, and none of which is 0."""
    count = int(torch.tensor(shape).prod())
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).reshape(shape)
    return ((order - count / 2 + 0.25) / 8).to(dtype)


@pytest.mark.parametrize("ascending", [True, False], ids=["sorted", "shuffled"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_values_and_gradients(op: str, layout: str, ascending: bool, engine: str) -> None:
    shape, dim, of_index = LAYOUTS[layout]
    index = index_of(of_index, dim, ascending)
    full = oracle.expanded(index, source(shape), dim)
    for dim_size in (None, N, N):  # the first use of an index, and more
        src = source(shape).requires_grad_()
        size = N if dim_size else int(index.max()) + 1
        want = oracle.reduced(op, src, full, dim % len(shape), size)
        got = function(op)(src, index, dim, dim_size=dim_size)
        assert got.shape == want.shape and got.is_contiguous()
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        grad = source(tuple(want.shape))
        (expected,) = torch.autograd.grad(want, src, grad)
        (found,) = torch.autograd.grad(got, src, grad)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["rows", "middle", "each value its own"])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_out_takes_part(op: str, layout: str, engine: str) -> None:
    shape, dim, of_index = LAYOUTS[layout]
    index = index_of(of_index, dim, False)
    full, dim = oracle.expanded(index, source(shape), dim), dim % len(shape)
    src = source(shape).requires_grad_()
    held = source((*shape[:dim], N, *shape[dim + 1 :])).flip(dim).requires_grad_()
    plain = oracle.reduced(op, src, full, dim, N)
    count = oracle.reduced("sum", torch.ones_like(src), full, dim, N)
    if op == "sum":
        want = held + plain
    elif op == "mul":
        want = held * plain
    elif op == "mean":
        want = (held + plain * count) / count.clamp(min=1)
    else:
        better = ((plain > held) if op == "max" else (plain < held)) & (count > 0)
        want = torch.where(better, plain, held)
    out = held * 1.0
    got = function(op)(src, index, dim, out=out)
    assert got is out
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    grad = source(tuple(want.shape))
    expected = torch.autograd.grad(want, [src, held], grad)
    for ours, theirs in zip(torch.autograd.grad(got, [src, held], grad), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_out_without_gaps_is_not_needed() -> None:
    """An ``out`` that lies in memory with gaps is written all the same."""
    whole = torch.zeros(3, N, dtype=torch.float64)
    src, index = source((E, 3)), SHUFFLED
    torch_scatter.scatter_max(src, index, 0, out=whole.t().fill_(-100.0))
    assert torch.equal(whole.t()[[0, 1, 3, 4]],
                       torch_scatter.scatter_max(src, index, 0)[0][[0, 1, 3, 4]])  # fmt: skip


@pytest.mark.parametrize("ascending", [True, False], ids=["sorted", "shuffled"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["max", "min"])
def test_places_of_extremes(op: str, layout: str, ascending: bool, engine: str) -> None:
    shape, dim, of_index = LAYOUTS[layout]
    index = index_of(of_index, dim, ascending)
    src = (source(shape) * 8).round().remainder(3)  # many are equal
    full, dim = oracle.expanded(index, src, dim), dim % len(shape)
    values, arg = getattr(torch_scatter, f"scatter_{op}")(src, index, dim, dim_size=N)
    want = oracle.reduced(op, src, full, dim, N)
    assert torch.equal(values, want)
    assert arg.dtype == torch.int64
    assert torch.equal(arg, oracle.first(src, full, dim, want))


@pytest.mark.parametrize("op", ["max", "min"])
def test_what_never_wins(op: str, engine: str) -> None:
    worst = -torch.inf if op == "max" else torch.inf
    src = torch.tensor([torch.nan, 1.0, worst, worst, torch.nan, 2.0])
    index = torch.tensor([0, 0, 1, 1, 2, 3])
    values, arg = getattr(torch_scatter, f"scatter_{op}")(src, index, dim_size=5)
    assert values.tolist() == [1, 0, 0, 2, 0]
    assert arg.tolist() == [1, 6, 6, 5, 6]
    out = torch.full((5,), 1.0)
    values, arg = getattr(torch_scatter, f"scatter_{op}")(src, index, out=out)
    assert values is out and arg.tolist() == [6, 6, 6, 5 if op == "max" else 6, 6]


@pytest.mark.parametrize("reduce", [*REDUCTIONS, "add"])
def test_scatter_chooses(reduce: str) -> None:
    src = source((E, 2))
    got = torch_scatter.scatter(src, SHUFFLED, 0, None, N, reduce)
    want = function("sum" if reduce == "add" else reduce)(src, SHUFFLED, 0, dim_size=N)
    assert torch.equal(got, want)
    assert torch.equal(torch_scatter.scatter(src, SHUFFLED, dim=0),
                       torch_scatter.scatter_add(src, SHUFFLED, 0))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_dtypes(op: str, dtype: torch.dtype, engine: str) -> None:
    src = source((E, 8), dtype)
    for index in (SORTED, SHUFFLED.clone()):
        full = oracle.expanded(index, src, 0)
        want = oracle.reduced(op, src.double(), full, 0, N)
        got = function(op)(src, index, 0, dim_size=N)
        assert got.dtype == dtype
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_integers(op: str, dtype: torch.dtype, engine: str) -> None:
    src = torch.arange(1, E + 1).remainder(4).to(dtype)
    for index in (SORTED, SHUFFLED):
        want = oracle.reduced("sum" if op == "mean" else op, src, index, 0, N)
        if op == "mean":
            want = want // oracle.reduced("sum", torch.ones_like(src), index, 0, N).clamp(min=1)
        got = function(op)(src, index, dim_size=N)
        assert got.dtype == dtype and torch.equal(got.long(), want.long())


def test_mean_of_negative_integers_is_rounded_down() -> None:
    src, index = torch.tensor([-3, 0]), torch.tensor([0, 0])
    assert torch_scatter.scatter_mean(src, index).tolist() == [-2]


@pytest.mark.parametrize("op", REDUCTIONS)
def test_empty(op: str, engine: str) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for src, want in ((torch.ones(0, 3), (0, 3)), (torch.ones(0), (0,))):
        src.requires_grad_()
        got = function(op)(src, none, 0)
        assert got.shape == want
        sized = function(op)(src, none, 0, dim_size=4)
        assert sized.shape == (4, *want[1:]) and sized.eq(1 if op == "mul" else 0).all()
        sized.sum().backward()
        assert src.grad is not None and src.grad.shape == src.shape
    assert function(op)(torch.ones(E, 0), SORTED, 0).shape == (5, 0)


def test_extremes_of_nothing_stand_nowhere(engine: str) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    values, arg = torch_scatter.scatter_max(torch.ones(0, 2), none, 0, dim_size=3)
    assert values.eq(0).all() and arg.eq(0).all(), "the size of the dimension is 0"


def test_gradient_of_a_product_with_zeros() -> None:
    src = torch.tensor([0.0, 2.0, 3.0, 0.0, 0.0], requires_grad=True)
    torch_scatter.scatter_mul(src, torch.tensor([0, 0, 1, 2, 2])).sum().backward()
    assert src.grad is not None and src.grad.tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_second_derivatives(op: str, engine: str) -> None:
    src = source((E, 2)).requires_grad_()
    for index in (SORTED, SHUFFLED):
        function(op)(src, index, 0, dim_size=N)
        assert torch.autograd.gradgradcheck(
            lambda x, index=index: function(op)(x * x, index, 0, dim_size=N), src
        )


def test_kernels_run(engine: str) -> None:
    src = source((E, 4), torch.float32).requires_grad_()
    with profile() as p:
        torch_scatter.scatter_sum(src, SORTED, 0).sum().backward()
        torch_scatter.scatter_max(src, SHUFFLED, 0)
    assert bool(p.launches) == (engine == "kernels")
    assert (p.host_operators["torch_scatter.sum"] > 0) == (engine == "torch")


@pytest.mark.parametrize("engine", ["kernels"], indirect=True)
def test_equal_inputs_give_equal_bits(engine: str) -> None:
    src = source((E, 3), torch.float32) / 3
    torch_scatter.scatter_sum(src, SHUFFLED, 0)
    first = torch_scatter.scatter_sum(src, SHUFFLED, 0)
    assert torch.equal(first, torch_scatter.scatter_sum(src.clone(), SHUFFLED, 0))


def test_errors() -> None:
    src = torch.ones(E, 2)
    with pytest.raises(InvalidArgument, match="sum, add, mul"):
        torch_scatter.scatter(src, SORTED, 0, reduce="median")
    with pytest.raises(InvalidArgument, match=r"index: no index; got torch.float32"):
        torch_scatter.scatter_sum(src, SORTED.float(), 0)
    with pytest.raises(InvalidArgument, match="dim: out of range; got 2"):
        torch_scatter.scatter_sum(src, SORTED, 2)
    with pytest.raises(InvalidArgument, match="out: does not fit"):
        torch_scatter.scatter_max(src, SORTED, 0, out=torch.zeros(N, 3))
    with pytest.raises(RuntimeError):
        torch_scatter.scatter_sum(src, SORTED[:5], 0)


@pytest.mark.parametrize("op", ["sum", "max"])
def test_index_out_of_range(op: str, engine: str) -> None:
    for index in (SORTED, SHUFFLED):
        with pytest.raises(RuntimeError, match="out of"):
            function(op)(torch.ones(E, 2), index, 0, dim_size=2)

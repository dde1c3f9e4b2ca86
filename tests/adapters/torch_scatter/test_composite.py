"""Softmax, its logarithm, log-sum-exp and standard deviation against plain torch in float64."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.adapters import torch_scatter
from gnn_backend.errors import InvalidArgument
from tests.adapters.torch_scatter import oracle
from tests.adapters.torch_scatter.test_scatter import LAYOUTS, SHUFFLED, E, N, index_of, source

pytestmark = pytest.mark.sampled(9)

FEW = ["list", "rows", "middle, each block its own", "each value its own", "last of two"]


def close(got: torch.Tensor, want: torch.Tensor, src: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    grad = source(tuple(want.shape))
    (expected,) = torch.autograd.grad(want, src, grad)
    (found,) = torch.autograd.grad(got, src, grad)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("ascending", [True, False], ids=["sorted", "shuffled"])
@pytest.mark.parametrize("layout", FEW)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "std", "biased std"])
def test_values_and_gradients(name: str, layout: str, ascending: bool, engine: str) -> None:
    shape, dim, of_index = LAYOUTS[layout]
    index = index_of(of_index, dim, ascending)
    src = source(shape).requires_grad_()
    full, d = oracle.expanded(index, src, dim), dim % len(shape)
    if name == "softmax":
        want = oracle.softmax(src, full, d)
        got = torch_scatter.scatter_softmax(src, index, dim)
    elif name == "log_softmax":
        want = oracle.softmax(src, full, d).log()
        got = torch_scatter.scatter_log_softmax(src, index, dim)
    elif name == "logsumexp":
        total = oracle.reduced("sum", src.exp(), full, d, N)
        want = torch.where(total > 0, total.clamp(min=1e-300).log(), 0)
        got = torch_scatter.scatter_logsumexp(src, index, dim, dim_size=N)
    else:
        unbiased = name == "std"
        count = oracle.reduced("sum", torch.ones_like(src), full, d, N)
        mean = oracle.reduced("mean", src, full, d, N)
        squares = oracle.reduced("sum", (src - mean.gather(d, full)) ** 2, full, d, N)
        divisor = (count - int(unbiased)).clamp(min=1)
        many = count > 1  # the square root has no gradient at 0
        want = torch.where(many, (squares / (divisor + 1e-6)).clamp(min=1e-30).sqrt(), 0)
        got = torch_scatter.scatter_std(src, index, dim, dim_size=N, unbiased=unbiased)
        assert got[~many].eq(0).all()
        got = torch.where(many, got, 0)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
        return
    close(got, want, src)


@pytest.mark.parametrize("unbiased", [True, False])
def test_gradient_of_the_deviation(unbiased: bool, engine: str) -> None:
    index = torch.tensor([0, 1, 0, 1, 1, 0])
    src = source((6, 2)).requires_grad_()
    want = torch.stack([src[index == n].var(0, correction=int(unbiased)) for n in (0, 1)])
    variance = torch_scatter.scatter_std(src, index, 0, unbiased=unbiased) ** 2
    close(variance * (1 + 1e-6 / (3 - int(unbiased))), want, src)


def test_large_numbers(engine: str) -> None:
    """The largest is taken away before powers are; what is masked out weighs nothing."""
    src = torch.tensor([1e4, 1e4 - 1, -1e4, -torch.inf, 3.0, -torch.inf])
    index = torch.tensor([0, 0, 1, 1, 2, 2])
    got = torch_scatter.scatter_softmax(src, index)
    p = 1 / (1 + torch.tensor(-1.0).exp())
    torch.testing.assert_close(got, torch.stack([p, 1 - p, *torch.tensor([1.0, 0, 1, 0])]))
    logs = torch_scatter.scatter_log_softmax(src, index)
    torch.testing.assert_close(logs.exp(), got)
    total = torch_scatter.scatter_logsumexp(src, index)
    torch.testing.assert_close(total, torch.tensor([1e4 - float(p.log()), -1e4, 3.0]))


def test_all_masked_is_nan(engine: str) -> None:
    src, index = torch.full((3,), -torch.inf), torch.tensor([0, 0, 1])
    assert torch_scatter.scatter_softmax(src, index).isnan().all()
    assert torch_scatter.scatter_logsumexp(src, index).eq(0).all()


def test_out_of_logsumexp(engine: str) -> None:
    src, held = source((E, 2)), source((N, 2)).flip(0)
    want = held.exp() + oracle.reduced("sum", src.exp(), oracle.expanded(SHUFFLED, src, 0), 0, N)
    want = want.log()
    want[[2, 5]] = 0  # where the index does not occur
    out = held.clone()
    got = torch_scatter.scatter_logsumexp(src, SHUFFLED, 0, out)
    assert got is out
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_out_of_the_deviation(engine: str) -> None:
    src, held = source((E, 2)), source((N, 2)).abs()
    out = held.clone()
    got = torch_scatter.scatter_std(src, SHUFFLED, 0, out)
    plain = torch_scatter.scatter_std(src, SHUFFLED, 0, dim_size=N)
    count = torch.bincount(SHUFFLED, minlength=N).double()[:, None]
    divisor = (count - 1).clamp(min=1) + 1e-6
    torch.testing.assert_close(got, (plain**2 + held / divisor).sqrt())
    torch.testing.assert_close(out, got**2 * divisor)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_second_derivatives(name: str, engine: str) -> None:
    named = getattr(torch_scatter, f"scatter_{name}")
    src = (source((E, 2)) / 4).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: named(x, SHUFFLED, 0), src)


def test_errors() -> None:
    for name in ("softmax", "log_softmax", "logsumexp"):
        with pytest.raises(InvalidArgument, match=f"scatter_{name} wants floating-point"):
            getattr(torch_scatter, f"scatter_{name}")(torch.ones(E).long(), SHUFFLED)
    with pytest.raises(InvalidArgument, match="out: does not fit"):
        torch_scatter.scatter_std(torch.ones(E, 2), SHUFFLED, 0, torch.zeros(N, 3))

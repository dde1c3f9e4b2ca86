"""The public product of segments: values, gradients of both orders, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gnn_backend.ops
from gnn_backend.errors import InvalidArgument
from gnn_backend.ops.matmul import segment_matmul

PTR = torch.tensor([0, 3, 3, 8, 9])


def operands(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (9, 4), (4, 4, 6)
    x, weight = (torch.randn(*s, generator=generator).to(dtype) for s in shapes)
    return x.requires_grad_(), weight.requires_grad_()


def by_loop(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([part @ weight[r] for r, part in enumerate(x.split(PTR.diff().tolist()))])


def test_gradients_of_both_orders() -> None:
    x, weight = operands()
    torch.testing.assert_close(segment_matmul(x, weight, PTR), by_loop(x, weight))
    assert torch.autograd.gradcheck(segment_matmul, (x, weight, PTR))
    assert torch.autograd.gradgradcheck(segment_matmul, (x, weight, PTR.int()))
    assert gnn_backend.ops.segment_matmul is segment_matmul


@pytest.mark.usefixtures("target")
def test_gradients_on_both_targets() -> None:
    x, weight = operands(torch.float32)
    cotangent = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    want = torch.autograd.grad(by_loop(x, weight), (x, weight), cotangent)
    got = torch.autograd.grad(segment_matmul(x, weight, PTR), (x, weight), cotangent)
    torch.testing.assert_close(got, want)
    (alone,) = torch.autograd.grad(segment_matmul(x.detach(), weight, PTR), weight, cotangent)
    assert torch.equal(alone, got[1])


@pytest.mark.parametrize(
    ("x", "weight", "ptr", "message"),
    [
        (torch.ones(9), torch.ones(4, 4, 6), PTR, "x, weight: wrong shape"),
        (torch.ones(9, 5), torch.ones(4, 4, 6), PTR, "x, weight: wrong shape"),
        (torch.ones(9, 4), torch.ones(4, 4, 6).half(), PTR, "x, weight: wrong dtypes"),
        (torch.ones(9, 4), torch.ones(4, 4, 6), PTR[1:], "ptr: wrong dtype or shape"),
        (torch.ones(9, 4), torch.ones(4, 4, 6), PTR.float(), "ptr: wrong dtype or shape"),
        (torch.ones(8, 4), torch.ones(4, 4, 6), PTR, "ptr: not the bounds"),
        (torch.ones(9, 4), torch.ones(4, 4, 6), PTR.flip(0), "ptr: not the bounds"),
    ],
)
def test_refusals(x: Tensor, weight: Tensor, ptr: Tensor, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        segment_matmul(x, weight, ptr)

"""Edge features in logits: many rows are summed as closely as the stock layers sum them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_backend.layers import edge_projection
from gnn_backend.layers.edge_projection import edge_logits

HEADS, WIDTH, FEATURES = 2, 4, 3


def operands(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (rows, FEATURES), (HEADS * WIDTH, FEATURES), (HEADS, WIDTH)
    return tuple(
        torch.randn(size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for size in sizes
    )  # type: ignore[return-value]


def stock(features: Tensor, weight: Tensor, att: Tensor) -> Tensor:
    projected = F.linear(features, weight).view(-1, HEADS, WIDTH)
    return (projected * att).sum(-1)


@pytest.mark.parametrize("rows", [0, 5, 8, 21, 24])
def test_logits_and_gradients(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_projection, "_CHUNK", 4)
    given = operands(rows, torch.float64)
    got, want = edge_logits(*given), stock(*given)
    cotangent = torch.randn_like(want)
    torch.testing.assert_close(got, want)
    for ours, theirs in zip(
        torch.autograd.grad(got, given, cotangent), torch.autograd.grad(want, given, cotangent),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(ours, theirs)


def test_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_projection, "_CHUNK", 2)
    assert torch.autograd.gradgradcheck(edge_logits, operands(7, torch.float64))


def test_many_rows_in_float32() -> None:
    given = operands(400_000, torch.float32)
    exact = operands(400_000, torch.float64)
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.rand(400_000, HEADS, generator=generator, dtype=torch.float64)
    wide = torch.autograd.grad(edge_logits(*exact), exact[1:], cotangent)
    for got, want in zip(
        torch.autograd.grad(edge_logits(*given), given[1:], cotangent.float()), wide, strict=True
    ):
        # A single product is 1e-5 off, chunks are 1e-6.
        assert (got - want).abs().max() < 3e-6 * want.abs().max()


@pytest.mark.parametrize("rows", [6, 20])
def test_autocast_decides_the_dtype(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_projection, "_CHUNK", 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert edge_logits(*operands(rows, torch.float32)).dtype == torch.bfloat16

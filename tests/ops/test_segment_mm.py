"""Products a segment and a row, against plain loops."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.ops.segment_mm import (
    gather_mm,
    gather_mm_scatter,
    segment_mm,
    segment_mm_backward_b,
)

LENGTHS = torch.tensor([3, 0, 5, 1])


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes]


@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS.int(), torch.tensor([9])])
def test_segment_mm(lengths: torch.Tensor) -> None:
    a, b = tensors((9, 4), (len(lengths), 4, 6))
    leaf_a, leaf_b = a.requires_grad_(), b.requires_grad_()
    parts = leaf_a.split(lengths.tolist())
    want = torch.cat([part @ leaf_b[r] for r, part in enumerate(parts)])
    a, b = a.detach(), b.detach()
    torch.testing.assert_close(segment_mm(a, b, lengths), want.detach())
    (grad,) = tensors((9, 6))
    grad_a, grad_b = torch.autograd.grad(want, (leaf_a, leaf_b), grad)
    torch.testing.assert_close(segment_mm(grad, b, lengths, transposed=True), grad_a)
    torch.testing.assert_close(segment_mm_backward_b(a, grad, lengths), grad_b)


def test_gather_mm() -> None:
    a, b = tensors((5, 4), (3, 4, 6))
    index_a, index_b = torch.tensor([4, 0, 0, 2, 1, 4]), torch.tensor([2, 0, 2, 2, 0, 0])
    want = torch.stack([a[i] @ b[j] for i, j in zip(index_a, index_b, strict=True)])
    torch.testing.assert_close(gather_mm(a, b, index_a, index_b), want)
    torch.testing.assert_close(gather_mm(a, b, index_a.int(), index_b.int()), want)
    own = torch.stack([a[i] @ b[j] for i, j in enumerate(index_b[:5])])
    torch.testing.assert_close(gather_mm(a, b, None, index_b[:5]), own)
    each = torch.stack([a[i] @ b[i] for i in range(3)])
    torch.testing.assert_close(gather_mm(a[:3], b), each)


@pytest.mark.usefixtures("emulator")
@pytest.mark.parametrize("gathered", [False, True])
def test_gather_mm_gradients(gathered: bool) -> None:
    a, b, grad = tensors((5, 4), (3, 4, 6), (5, 6))
    a, b = a.requires_grad_(), b.requires_grad_()
    index_b = torch.tensor([2, 0, 2, 2, 0])
    index_a = torch.tensor([4, 0, 0, 2, 1]) if gathered else None
    rows = a if index_a is None else a[index_a]
    out = torch.stack([rows[i] @ b[j] for i, j in enumerate(index_b)])
    want_a, want_b = torch.autograd.grad(out, (a, b), grad)
    a, b = a.detach(), b.detach()
    got = gather_mm_scatter(grad, b.transpose(1, 2), 5, index_b=index_b, index_c=index_a)
    torch.testing.assert_close(got, want_a)
    got = gather_mm_scatter(a, grad, 3, index_a=index_a, index_c=index_b)
    torch.testing.assert_close(got, want_b)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([3, 3], "lengths: not those"), ([10, -1], "lengths: not those"), ([9], "do not fit")],
)
def test_bad_lengths(lengths: list[int], message: str) -> None:
    a, b = tensors((9, 4), (2, 4, 6))
    with pytest.raises(InvalidArgument, match=message):
        segment_mm(a, b, torch.tensor(lengths))


def test_bad_shapes() -> None:
    a, b = tensors((9, 4), (2, 5, 6))
    with pytest.raises(InvalidArgument, match="do not fit"):
        segment_mm(a, b, torch.tensor([4, 5]))
    with pytest.raises(InvalidArgument, match="wrong shape"):
        segment_mm(a[0], b, torch.tensor([4, 5]))
    with pytest.raises(InvalidArgument, match="wrong shape"):
        segment_mm_backward_b(a, a[1:], torch.tensor([4, 5]))

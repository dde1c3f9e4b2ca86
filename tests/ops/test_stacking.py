"""Parameters of many layers in one buffer: values, gradients, and one launch for any number."""

from __future__ import annotations

import pytest
import torch

from gnn_backend import profile
from gnn_backend.config import override
from gnn_backend.ops.stacking import stack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,), (8, 5), (2, 1, 16)])
def test_values_and_gradients(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(5)]
    cotangent = torch.randn(5, *shape, dtype=dtype)
    with override(cpu_target="emulator"):
        found = stack(tensors)
        grads = torch.autograd.grad(found, tensors, cotangent)
    assert torch.equal(found, torch.stack(tensors))
    assert all(map(torch.equal, grads, cotangent))


def test_addresses_that_share_no_wide_word() -> None:
    flat = torch.randn(64)
    tensors = [flat[1:9], flat[16:24], flat[33:41]]
    with override(cpu_target="emulator"):
        assert torch.equal(stack(tensors), torch.stack(tensors))
        tensors[1] = flat[::8]  # with gaps
        assert torch.equal(stack(tensors), torch.stack(tensors))


def test_launches_do_not_grow_with_the_number_of_tensors() -> None:
    counts = []
    with override(cpu_target="emulator"):
        for number in (4, 400):
            tensors = [torch.full((7, 3), float(i), requires_grad=True) for i in range(number)]
            with profile() as report:
                found = stack(tensors)
            counts.append(sum(report.launches.values()))
            assert torch.equal(found[:, 0, 0], torch.arange(number).float())
    assert counts == [1, 1]


def test_gradients_are_views_of_one_buffer() -> None:
    tensors = [torch.randn(6, requires_grad=True) for _ in range(3)]
    with override(cpu_target="emulator"):
        stack(tensors).square().sum().backward()
    storages = {t.grad.untyped_storage().data_ptr() for t in tensors if t.grad is not None}
    assert len(storages) == 1

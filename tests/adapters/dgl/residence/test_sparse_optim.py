"""DGL's sparse Adam of embeddings on the CPU, with gradients on the device."""

from __future__ import annotations

from typing import Any

import dgl
import pytest
import torch
from dgl.optim import SparseAdam
from torch.overrides import TorchFunctionMode

import gnn_backend
from gnn_backend.adapters.dgl.residence.sparse_optim import WaitForCopies


class Copies(TorchFunctionMode):
    """Notes whether calls of ``to`` wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[bool] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if function is torch.Tensor.to:
            self.waited.append(not kwargs.get("non_blocking", False))
        return function(*args, **kwargs)


@pytest.mark.parametrize(
    ("where", "waits"),
    [
        (("cpu",), True),
        ((torch.device("cpu"), torch.float64), True),
        ((torch.zeros(1),), True),
        (("meta",), False),
        ((torch.float64,), False),
    ],
)
def test_copies_to_the_cpu_wait(where: Any, waits: bool) -> None:
    with Copies() as copies, WaitForCopies():
        torch.ones(3).to(*where, non_blocking=True)
        torch.ones(3).to(*where)
    assert copies.waited == [waits, True]


def test_copies_by_name_wait() -> None:
    with Copies() as copies, WaitForCopies():
        torch.ones(3).to(device="cpu", non_blocking=True)
    assert copies.waited == [True]


def step(device: str, dim: int, use_uva: bool | None, name: str) -> tuple[Any, Any]:
    """Weights after two steps of DGL's optimizer, and what they have to be."""
    emb = dgl.nn.NodeEmbedding(10, dim, name)
    torch.manual_seed(0)
    torch.nn.init.uniform_(emb.weight)
    wanted = emb.weight.double().clone()
    memory, power = torch.zeros_like(wanted), torch.zeros_like(wanted)
    optimizer = SparseAdam([emb], lr=0.01, use_uva=use_uva)
    rows, factor = torch.tensor([7, 2, 5]), torch.rand(3, dim)
    for number in (1, 2):
        optimizer.zero_grad()
        (emb(rows, device) * factor.to(device)).sum().backward()
        optimizer.step()
        memory[rows] = 0.9 * memory[rows] + 0.1 * factor.double()
        power[rows] = 0.999 * power[rows] + 0.001 * factor.double() ** 2
        std = (power[rows] / (1 - 0.999**number)).sqrt() + 1e-8
        wanted[rows] -= 0.01 * memory[rows] / (1 - 0.9**number) / std
    return emb.weight, wanted


@pytest.mark.parametrize("use_uva", [False, None])
def test_steps_on_the_cpu(use_uva: bool | None) -> None:
    with gnn_backend.enabled(hosts="dgl"):
        found, wanted = step("cpu", 33, use_uva, f"cpu-{use_uva}")
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [1, 1024])
@pytest.mark.parametrize("use_uva", [False, True, None])
def test_steps_from_the_device(
    monkeypatch: pytest.MonkeyPatch, use_uva: bool | None, dim: int
) -> None:
    """The device is slow with the step: what the CPU reads too early is wrong for sure."""
    root = torch.sqrt

    def slow(value: torch.Tensor) -> torch.Tensor:
        if value.is_cuda:
            torch.cuda._sleep(100_000_000)  # cycles, about a twentieth of a second
        return root(value)

    monkeypatch.setattr(torch, "sqrt", slow)  # DGL's update takes it before it copies the step
    with gnn_backend.enabled(hosts="dgl"):
        found, wanted = step("cuda", dim, use_uva, f"cuda-{use_uva}-{dim}")
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)

"""Random numbers that do not depend on the device."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from gnn_backend import draws

DRAWS = {
    "randn": lambda device: torch.randn(5, 3, device=device),
    "rand": lambda device: torch.rand(5, device=device, requires_grad=True),
    "randint": lambda device: torch.randint(9, (7,), device=device),
    "randperm": lambda device: torch.randperm(9, device=device),
    "rand_like": lambda device: torch.rand_like(torch.ones(4, device=device)),
    "dropout": lambda device: F.dropout(torch.ones(6, 5, device=device), 0.3),
    "layer": lambda device: torch.nn.Dropout(0.3)(torch.ones(6, 5, device=device)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_nothing_changes_on_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    wanted = DRAWS[name]("cpu")
    torch.manual_seed(0)
    with draws.on_the_cpu():
        found = DRAWS[name]("cpu")
    assert torch.equal(found, wanted) and found.requires_grad == wanted.requires_grad


@pytest.mark.gpu
@pytest.mark.parametrize("name", DRAWS)
def test_a_device_gets_the_numbers_of_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    wanted = DRAWS[name]("cpu")
    torch.manual_seed(0)
    with draws.on_the_cpu():
        found = DRAWS[name]("cuda")
    assert found.is_cuda and torch.equal(found.cpu(), wanted)
    assert found.requires_grad == wanted.requires_grad


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropout_is_torchs(p: float) -> None:
    x = torch.randn(6, 5)
    torch.manual_seed(0)
    wanted = F.dropout(x, p)
    torch.manual_seed(0)
    assert torch.equal(x * draws.dropout_scale(x, p), wanted)


@pytest.mark.parametrize("name", DRAWS)
def test_another_device_draws_from_the_generator_of_the_cpu(name: str) -> None:
    """On a device without numbers."""
    torch.manual_seed(0)
    DRAWS[name]("cpu")
    wanted = torch.get_rng_state()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with draws.on_the_cpu():
        assert DRAWS[name]("meta").device.type == "meta"
    assert torch.equal(torch.get_rng_state(), wanted) and not torch.equal(wanted, before)


def test_a_given_generator_is_used() -> None:
    generator = torch.Generator().manual_seed(1)
    before = torch.get_rng_state()
    with draws.on_the_cpu():
        torch.rand(3, device="cpu", generator=generator)
    assert torch.equal(torch.get_rng_state(), before)

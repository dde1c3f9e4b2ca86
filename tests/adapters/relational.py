"""Relational layers of a host against their stock selves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gnn_backend
from gnn_backend.ir import steps
from gnn_backend.ops.reference import traversal as reference
from tests.adapters.pyg.helpers import assert_equal, gradients


@contextlib.contextmanager
def fused(host: str) -> Iterator[None]:
    """Inside, one call must be fused and none may fall back."""
    with gnn_backend.enabled(hosts=host), gnn_backend.profile() as profile:
        yield
    assert dict(profile.reasons) == {}
    assert profile.accelerated == 1


def check(host: str, conv: torch.nn.Module, *inputs: Any) -> None:
    """Output, all gradients and the random stream as stock's."""
    want = gradients(conv, *inputs)
    number = torch.rand(1)
    with fused(host):
        got = gradients(conv, *inputs)
        assert torch.equal(torch.rand(1), number), "other random numbers were drawn"
    assert_equal(got, want)


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traversals in plain torch: nothing is compiled."""
    monkeypatch.setattr(steps, "traverse", reference.run)

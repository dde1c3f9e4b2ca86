"""An aggregating layer of DGL against its stock self."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import gnn_backend
from gnn_backend.profile import Profile
from tests.adapters.attention import compare
from tests.adapters.pyg.helpers import assert_equal, gradients

Equal = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


@contextlib.contextmanager
def fused(calls: int = 1) -> Iterator[Profile]:
    """Enable DGL; inside, exactly ``calls`` calls must be fused and none may fall back."""
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        yield profile
    assert dict(profile.reasons) == {}
    assert profile.accelerated == calls


def check(conv: torch.nn.Module, *inputs: Any, calls: int = 1, equal: Equal = assert_equal) -> None:
    """Output, all gradients and the random stream as stock's."""
    want = gradients(conv, *inputs)
    number = torch.rand(1)
    with fused(calls):
        got = gradients(conv, *inputs)
        assert torch.equal(torch.rand(1), number), "other random numbers were drawn"
    equal(got, want)


def but_for_cancellation(got: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """As :func:`assert_equal`; gradients that cancel are judged by the size of the others."""
    compare("result or gradient", dict(got), dict(want))


def name(combination: dict[str, Any]) -> str:
    """The same in every process: a function's own text holds its address."""
    texts = (getattr(value, "__name__", str(value)) for value in combination.values())
    return "-".join(text.replace("torch.", "") for text in texts)

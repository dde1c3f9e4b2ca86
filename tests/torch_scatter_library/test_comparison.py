"""The comparison with the library finds what differs, and asks for every function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gnn_backend.adapters import torch_scatter as ours
from gnn_backend.adapters.torch_scatter.provide import NAMES
from tests.torch_scatter_library.cases import Call, calls
from tests.torch_scatter_library.comparison import compare, relative_error

CALLS = list(calls())


def call_of(name: str) -> Call:
    return next(call for call in CALLS if call.name == name)


def test_every_function_is_called() -> None:
    assert {call.function for call in CALLS} == {name for names in NAMES.values() for name in names}
    assert len({call.name for call in CALLS}) == len(CALLS)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda v, a: (v, a), ""),
        (lambda v, a: (v + 1, a), "out differs by"),
        (lambda v, a: (v, a + 1), "out 1 differs in"),
        (lambda v, a: (2 * v - v.detach(), a), "gradient differs by"),
        (lambda v, a: (v.double(), a), "out is"),
        (lambda v, a: (v * torch.nan, a), "out differs by inf"),
    ],
)
def test_a_difference_is_found(wrong: Any, says: str) -> None:
    library = SimpleNamespace(scatter_max=lambda *a, **k: wrong(*ours.scatter_max(*a, **k)))
    outcome = compare(library, ours, call_of("scatter_max, rows, float32, shuffled"))
    assert says in outcome.problem and bool(says) == bool(outcome.problem)


def test_relative_error() -> None:
    a = torch.tensor([1.0, 2.0, torch.inf, torch.nan])
    assert relative_error(a, a.clone()) == 0
    assert relative_error(a, torch.tensor([1.5, 2.0, torch.inf, torch.nan])) == 0.25
    assert relative_error(a, torch.tensor([1.0, 2.0, 1.0, torch.nan])) == float("inf")

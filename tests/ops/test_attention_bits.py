"""Equal inputs give equal bits: between runs, threads and lane orders of the emulator."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gnn_backend import config
from tests.ops.support import DTYPES, problem, run, same_bits

pytestmark = pytest.mark.sampled(5)

SHAPES = [(2, 64), (3, 7)]


@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_repeated(heads: int, dim: int, target: str, splitting: None) -> None:
    p = problem(heads, dim)
    first = run(p)
    for _ in range(4):
        assert same_bits(first, run(p))
    p.graph.clear()
    assert same_bits(first, run(p))


@pytest.mark.usefixtures("splitting")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_number_of_threads(count: int) -> None:
    first, before = run(problem()), torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        assert same_bits(first, run(problem()))
    finally:
        torch.set_num_threads(before)


def test_calls_at_the_same_time(target: str, splitting: None) -> None:
    p = problem(3, 7)
    first = run(p)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: run(p), range(8)))
    assert all(same_bits(first, result) for result in results)


@pytest.mark.usefixtures("emulator", "splitting")
@pytest.mark.parametrize("order", ["reversed", "random:1", "random:2"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "dim"), SHAPES)
def test_lane_orders(heads: int, dim: int, dtype: torch.dtype, order: str) -> None:
    p = problem(heads, dim, dtype)
    with config.override(emulator_lane_order="forward"):
        first = run(p)
    with config.override(emulator_lane_order=order):
        assert same_bits(first, run(p))


def test_deterministic_algorithms_are_accepted(target: str) -> None:
    p = problem(3, 7)
    first = run(p)
    torch.use_deterministic_algorithms(True)
    try:
        assert same_bits(first, run(p))
    finally:
        torch.use_deterministic_algorithms(False)

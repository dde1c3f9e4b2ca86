"""Draws from Python's generator: the numbers of random.sample, and the state that it leaves."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gnn_backend.runtime import python_random

#: Population and count: both of Python's methods, the bound between them, and wide numbers.
CASES = [(1, 0), (1, 1), (7, 7), (21, 4), (22, 4), (277, 22), (278, 22), (5000, 4999),
         ((1 << 32) - 1, 2000), (1 << 32, 2000), ((1 << 61) + 5, 800)]  # fmt: skip


@pytest.mark.parametrize(("population", "count"), CASES)
def test_the_same_numbers_and_state(population: int, count: int) -> None:
    for seed in range(4):
        random.seed(seed)
        random.gauss(0, 1)  # leaves a second number behind, and another place in the words
        before = random.getstate()
        want, after = random.sample(range(population), count), random.getstate()
        random.setstate(before)
        got = python_random.sample(population, count)
        assert got is not None and got.tolist() == want
        assert random.getstate() == after


class Biased(random.Random):
    pass


def test_methods_that_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    state = random.getstate()
    monkeypatch.setattr(random, "sample", Biased(0).sample)
    assert python_random.sample(100, 3) is None
    monkeypatch.setattr(random, "sample", lambda population, k: population[:k])
    assert python_random.sample(100, 3) is None
    monkeypatch.undo()
    original: Any = random.Random.sample

    def other(self: random.Random, population: Any, k: int) -> Any:
        return original(self, population, k)[::-1]

    monkeypatch.setattr(random.Random, "sample", other)
    monkeypatch.setattr(random, "sample", other.__get__(random.sample.__self__))  # type: ignore[attr-defined]
    assert python_random.sample(100, 3) is None
    assert random.getstate() == state

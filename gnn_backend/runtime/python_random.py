"""Samples that Python's generator would draw, in a fraction of the time.

``random.sample`` takes about half a microsecond a number, and makes an object of each. The same
numbers are drawn here in Numba, and the generator is left as it would be.
"""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import numba
import numpy as np

from gnn_backend.runtime import cpu_module

_STATE_VERSION = 3
_WORDS = 624
# Sizes on both sides of the bound between the two methods, and numbers of more than 32 bits.
_TRIALS = ((85, 10), (86, 10), (21, 5), (22, 5), (700, 650), (1 << 20, 3000), (5 << 38, 700))


def sample(population: int, count: int) -> np.ndarray | None:
    """What ``random.sample(range(population), count)`` returns, with the same effect.

    Parameters
    ----------
    population : int
        Below 2**62.
    count : int
        At most ``population``.

    Returns
    -------
    int64 [count], or None
        None: Python's method or its generator is not the one known here, and nothing was drawn.
    """
    owner = getattr(random.sample, "__self__", None)
    if type(owner) is not random.Random or random.sample != random.Random.sample.__get__(owner):
        return None
    if not _known(random.Random.sample, random.Random._randbelow):  # type: ignore[attr-defined]
        return None
    return _sample(owner, population, count)


@functools.lru_cache(maxsize=4)
def _known(method: Any, below: Any) -> bool:
    """Whether these methods draw what is drawn here, tried out once."""
    for population, count in _TRIALS:
        theirs, ours = random.Random(count), random.Random(count)
        want, got = method(theirs, range(population), count), _sample(ours, population, count)
        if got is None or got.tolist() != want or ours.getstate() != theirs.getstate():
            return False
    return True


def _sample(generator: random.Random, population: int, count: int) -> np.ndarray | None:
    while True:
        state = generator.getstate()
        if state[0] != _STATE_VERSION:
            return None
        words = np.array(state[1][:_WORDS], np.int64)
        place = np.array(state[1][_WORDS:], np.int64)
        drawn = _drawn(words, place, population, count)
        if generator.getstate() == state:  # else another thread drew from it: not the same twice
            generator.setstate((state[0], (*words.tolist(), *place.tolist()), state[2]))
            return drawn


def _drawn(words: np.ndarray, place: np.ndarray, population: int, count: int) -> np.ndarray:
    out = np.empty(count, np.int64)
    if population <= _largest_pool(count):
        _run("draw_from_pool", words, place, np.arange(population), out)
        return out
    narrow = population < 1 << 32
    size = 1 << max(4, (2 * count - 1).bit_length() if count else 0)
    taken = np.zeros(size, np.uint32 if narrow else np.int64)
    _run("draw_distinct", words, place, population.bit_length(), population, taken, out)
    return out


def _largest_pool(count: int) -> int:
    """Size of the population up to which Python takes numbers out of a list of all."""
    return 21 + (4 ** math.ceil(math.log(count * 3, 4)) if count > 5 else 0)


def _run(name: str, *arguments: Any) -> None:
    types = tuple(numba.types.int64 if isinstance(a, int) else numba.typeof(a) for a in arguments)
    cpu_module.compiled("python_random", name, types)(*arguments)

"""Few combinations of arguments in which every value, or every pair of values, occurs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Choices = Mapping[str, Sequence[Any]]
Allowed = Callable[[dict[str, Any]], bool]
_Part = tuple[tuple[str, int], ...]  # an argument and the number of its value, one or more

TRIES = 200  # random completions, of which the one that covers most is taken


def pairwise(choices: Choices, allowed: Allowed, seed: int = 0) -> list[dict[str, Any]]:
    """Combinations in which every allowed pair of values of two arguments occurs at least once."""
    pairs = (
        ((a, i), (b, j))
        for a, b in itertools.combinations(choices, 2)
        for i in range(len(choices[a]))
        for j in range(len(choices[b]))
    )
    return _covering(pairs, choices, allowed, seed)


def each_choice(choices: Choices, allowed: Allowed, seed: int = 0) -> list[dict[str, Any]]:
    """Combinations in which every allowed value of every argument occurs at least once."""
    single = (((a, i),) for a in choices for i in range(len(choices[a])))
    return _covering(single, choices, allowed, seed)


def _covering(
    parts: Iterable[_Part], choices: Choices, allowed: Allowed, seed: int
) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    missing, chosen = list(parts), []
    while missing:
        part = dict(missing[0])
        tries = [
            {n: part.get(n, rng.randrange(len(choices[n]))) for n in choices} for _ in range(TRIES)
        ]
        tries = [t for t in tries if allowed({n: choices[n][t[n]] for n in choices})]
        best = max(tries, key=lambda t: sum(_covers(t, m) for m in missing), default=None)
        if best is None:  # the part itself is not allowed
            missing.pop(0)
            continue
        missing = [m for m in missing if not _covers(best, m)]
        chosen.append({n: choices[n][best[n]] for n in choices})
    return chosen


def _covers(combination: Mapping[str, int], part: _Part) -> bool:
    return all(combination[name] == value for name, value in part)

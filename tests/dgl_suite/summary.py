"""What came of a run: counts by area of DGL, the printed summary, several shards as one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

AREAS = {
    "nn": ("pytorch/nn/",),
    "ops": (
        "common/ops/",
        "common/test_heterograph-kernel.py",
        "common/test_sparse_ops-csr.py",
        "pytorch/mpops/",
    ),
}
"""Beginnings of the ids of an area's tests; all others are the area ``rest``."""

NUMBERS = ("passed", "failed", "failed as expected", "skipped", "on resident graphs",
           "accelerated", "seconds")  # fmt: skip
WRONG = ("failed", "unexpected passes", "unmatched", "aborted", "missing shards")
"""Entries of the results that must be empty or 0."""


def area(test: str) -> str:
    """The area of a test by its id."""
    return next((name for name, begins in AREAS.items() if test.startswith(begins)), "rest")


def by_area(outcomes: Mapping[str, str], known: Iterable[str]) -> dict[str, dict[str, int]]:
    """How many tests of each area had each outcome; ``known`` are failures that were expected."""
    known = set(known)
    found: dict[str, Counter[str]] = {name: Counter() for name in (*AREAS, "rest")}
    for test, outcome in outcomes.items():
        found[area(test)][outcome + (" as expected" if test in known else "")] += 1
    return {name: dict(counts) for name, counts in found.items()}


def share(counts: Mapping[str, int]) -> str:
    """How many passed of those that ran, in percent; what is expected to fail ran too."""
    ran = sum(counts.get(name, 0) for name in NUMBERS[:3])
    return f"{100.0 * counts.get('passed', 0) / ran:.1f} % passed" if ran else "none ran"


def report(found: Mapping[str, Any]) -> None:
    """Print the summary."""
    for name in ("failures", "unexpected passes", "unmatched", "missing shards"):
        entries = found.get(name, ())
        for entry in entries:
            why = entries[entry] if isinstance(entries, dict) else ""
            print(f"{name}: {entry} {why}".replace("\n", " ")[:300])
    if found["aborted"]:
        print(f"aborted: {found['aborted']}")
    for name, counts in found["areas"].items():
        numbers = ", ".join(f"{counts.get(number, 0)} {number}" for number in NUMBERS[:4])
        print(f"{name}: {share(counts)} ({numbers})")
    print(f"{found['mode']}, shard {found['shard']}: "
          + ", ".join(f"{found[name]} {name}" for name in NUMBERS))  # fmt: skip


def succeeded(found: Mapping[str, Any]) -> bool:
    """Whether nothing was unexpected."""
    return not any(found.get(name) for name in WRONG)


def merge(shards: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of several shards as one.

    Parameters
    ----------
    shards : iterable of dict
        What each left as JSON.

    Returns
    -------
    dict
        As of one shard: numbers added up, lists and tables joined. ``"missing shards"`` are those
        of the same division that are not there.

    Raises
    ------
    ValueError
        They are not shards of one division in one mode, or one is there twice.
    """
    parts = list(shards)
    modes = {(part["mode"], part["shard"][1]) for part in parts}
    numbers = [part["shard"][0] for part in parts]
    if len(modes) != 1 or len(set(numbers)) != len(numbers):
        raise ValueError(f"results do not belong together; got {[p['shard'] for p in parts]} in "
                         f"{sorted({p['mode'] for p in parts})}, expected different shards of "
                         "one division in one mode")  # fmt: skip
    mode, count = modes.pop()
    found: dict[str, Any] = {}
    for part in parts:
        found = joined(found, part)
    found["seconds"] = round(found["seconds"], 1)
    missing = sorted(set(range(1, count + 1)) - set(numbers))
    return {**found, "mode": mode, "shard": [1, 1], "missing shards": missing}


def lose(
    found: dict[str, Any], outcomes: dict[str, str], test: str, why: str, reason: str | None
) -> None:
    """Make a test a failure in results that have it as anything else, or not at all.

    Parameters
    ----------
    found : dict
        Results; changed.
    outcomes : dict
        Outcomes by test id; changed.
    test, why : str
    reason : str or None
        Why the test is expected to fail, if it is.
    """
    before = outcomes.get(test)
    if before == "failed":
        return
    counts = found["areas"].setdefault(area(test), {})
    if before is not None:
        found[before] -= 1
        counts[before] -= 1
    kind = "failed" if reason is None else "failed as expected"
    outcomes[test] = "failed"
    found[kind] += 1
    counts[kind] = counts.get(kind, 0) + 1
    found["failures" if reason is None else "expected failures"][test] = why
    if reason is not None:
        found["reasons"][reason] = found["reasons"].get(reason, 0) + 1


def joined(one: Any, other: Any) -> Any:
    """Two entries of results as one; the first is None where it is missing."""
    if isinstance(other, Mapping):
        one = one or {}
        return {**one, **{key: joined(one.get(key), value) for key, value in other.items()}}
    if isinstance(other, list):
        return [*(one or ()), *(entry for entry in other if entry not in (one or ()))]
    if isinstance(other, (int, float)):
        return (one or 0) + other
    return other if not one or one == other else f"{one}; {other}"


def merge_files(output: Path, inputs: Iterable[Path]) -> bool:
    """Merge files of results into ``output``, print the summary; whether all went as expected."""
    found = merge(json.loads(path.read_text()) for path in inputs)
    output.write_text(json.dumps(found, indent=1))
    report(found)
    return succeeded(found)

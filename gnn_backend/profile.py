"""Counters of kernel launches and of accelerated and stock calls."""

from __future__ import annotations

import threading
from collections import Counter

_lock = threading.Lock()
launches: Counter[tuple[str, str]] = Counter()


def count_launch(target: str, name: str) -> None:
    """Record one kernel launch on ``target`` (``cuda``, ``emulator`` or ``numba``)."""
    with _lock:
        launches[target, name] += 1

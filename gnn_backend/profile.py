"""Counters of kernel launches and of accelerated and stock calls."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # else a child could inherit the lock as taken
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


@dataclasses.dataclass
class SymbolStats:
    """What happened to the calls of one host symbol.

    Attributes
    ----------
    accelerated, fallbacks : int
        Calls that ran our kernels, and calls that ran the stock code.
    reasons : Counter
        Reason code of each fallback.
    seconds_accelerated, seconds_stock : float
        Wall time spent in them. CUDA work is asynchronous, see ``profile(synchronize=True)``.
    memory_saved : int
        Largest number of bytes of edge-wise intermediates that one accelerated call avoided, as
        its adapter computes it from the shapes.
    """

    accelerated: int = 0
    fallbacks: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)
    seconds_accelerated: float = 0.0
    seconds_stock: float = 0.0
    memory_saved: int = 0


class Profile:
    """Counts collected since the process began, or inside a ``with`` block.

    All attributes may be read while it is still collecting.
    """

    def __init__(self, synchronize: bool = False) -> None:
        self.synchronize = synchronize
        self.by_symbol: dict[str, SymbolStats] = {}
        self.launches: Counter[tuple[str, str]] = Counter()
        """Kernel launches by (target, kernel name); the target is cuda, numba or emulator."""
        self.detours: Counter[str] = Counter()
        """DGL functions that were answered for a graph on CUDA by copying to the CPU and back."""
        self.host_operators: Counter[str] = Counter()
        """Sparse operators that the host answered by itself: on CPU tensors, which have no kernels
        for them. Not among the calls, for no call of a layer fell back."""

        self.choices: Counter[str] = Counter()
        """What attention (forward) and aggregation ran with, and why; only in a ``with`` block."""

    @property
    def accelerated(self) -> int:
        """Calls that ran our kernels."""
        return sum(s.accelerated for s in self.by_symbol.values())

    @property
    def fallbacks(self) -> int:
        """Calls that ran the stock code although acceleration was on."""
        return sum(s.fallbacks for s in self.by_symbol.values())

    @property
    def calls(self) -> int:
        """All calls that were dispatched."""
        return self.accelerated + self.fallbacks

    @property
    def reasons(self) -> Counter[str]:
        """How often each reason code made a call fall back."""
        return sum((s.reasons for s in self.by_symbol.values()), Counter())

    @property
    def time(self) -> dict[str, float]:
        """Seconds spent in ``accelerated`` and in ``stock`` calls."""
        stats = list(self.by_symbol.values())
        return {
            "accelerated": sum(s.seconds_accelerated for s in stats),
            "stock": sum(s.seconds_stock for s in stats),
        }

    @property
    def memory_saved(self) -> int:
        """Largest number of bytes of edge-wise intermediates that one call avoided."""
        return max((s.memory_saved for s in self.by_symbol.values()), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, ready for JSON."""
        return {
            "calls": self.calls,
            "accelerated": self.accelerated,
            "fallbacks": self.fallbacks,
            "reasons": dict(self.reasons),
            "time": self.time,
            "memory_saved": self.memory_saved,
            "launches": [
                {"target": target, "name": name, "count": count}
                for (target, name), count in sorted(self.launches.items())
            ],
            "detours": dict(sorted(self.detours.items())),
            "host_operators": dict(sorted(self.host_operators.items())),
            "choices": dict(sorted(self.choices.items())),
            "by_symbol": {
                symbol: {**vars(stats), "reasons": dict(stats.reasons)}
                for symbol, stats in sorted(self.by_symbol.items())
            },
        }

    def table(self) -> Table:
        """Return a rich table of the calls; print it with ``rich.print``."""
        from gnn_backend.report import profile_table

        return profile_table(self)

    def __str__(self) -> str:
        from gnn_backend.report import render

        return render(self.table())

    def __repr__(self) -> str:
        """One line: how many calls ran on our kernels, how many on stock and why."""
        why = ", ".join(f"{reason} x{count}" for reason, count in self.reasons.most_common())
        return (
            f"<Profile: {self.accelerated} accelerated, {self.fallbacks} stock"
            f"{f' ({why})' if why else ''}, {sum(self.launches.values())} launches>"
        )

    def __enter__(self) -> Profile:
        global _synchronizing
        with _lock:
            _collecting.append(self)
            _synchronizing += self.synchronize
        return self

    def __exit__(self, *exc_info: object) -> None:
        global _synchronizing
        with _lock:
            _collecting.remove(self)
            _synchronizing -= self.synchronize


totals = Profile()
"""Everything since the process began."""
launches = totals.launches
_collecting: list[Profile] = [totals]
_synchronizing = 0  # running profiles that want GPU times


def profile(*, synchronize: bool = False) -> Profile:
    """Count accelerated and stock calls, their reasons and times, and our kernel launches.

    ``with profile() as p:`` counts what happens inside the block, in all threads. Read without a
    ``with`` block, the returned object starts from the totals of the process. Code compiled by
    ``torch.compile`` shows in the kernel launches only, not in the calls.

    Parameters
    ----------
    synchronize : bool
        Wait for the GPU around each call, so that its time is the GPU's and not only the host's.
    """
    return _Totals(synchronize)


class _Totals(Profile):
    """The process totals, until it is entered as a context manager."""

    def __init__(self, synchronize: bool) -> None:
        super().__init__(synchronize)
        self.by_symbol = totals.by_symbol
        self.launches = totals.launches
        self.detours = totals.detours
        self.host_operators = totals.host_operators

    def __enter__(self) -> Profile:
        self.by_symbol, self.launches = {}, Counter()
        self.detours, self.host_operators, self.choices = Counter(), Counter(), Counter()
        return super().__enter__()


def count_launch(target: str, name: str) -> None:
    """Record one kernel launch on ``target`` (``cuda``, ``emulator`` or ``numba``)."""
    with _lock:
        for sink in _collecting:
            sink.launches[target, name] += 1


def note_choice(text: Callable[[], str]) -> None:
    """Record what a call runs with; ``text`` is asked only where somebody collects."""
    if len(_collecting) == 1:
        return
    chosen = text()
    with _lock:
        for sink in _collecting[1:]:
            sink.choices[chosen] += 1


def count_detour(name: str) -> None:
    """Record that DGL's function ``name`` answered for a graph on CUDA through the CPU."""
    with _lock:
        for sink in _collecting:
            sink.detours[name] += 1


def count_host_operator(symbol: str) -> None:
    """Record that the host's own operator answered, ``dgl.gspmm`` for example."""
    with _lock:
        for sink in _collecting:
            sink.host_operators[symbol] += 1


def record_call(
    symbol: str, accelerated: bool, reason: str | None, seconds: float, saved: int = 0
) -> None:
    """Record one dispatched call.

    Parameters
    ----------
    symbol : str
        For example ``pyg.GATv2Conv``.
    accelerated : bool
        Whether our kernels ran.
    reason : str or None
        Reason code of a fallback.
    seconds : float
        Wall time of the call.
    saved : int
        Bytes of edge-wise intermediates that the stock code would have held.
    """
    with _lock:
        for sink in _collecting:
            stats = sink.by_symbol.get(symbol)
            if stats is None:
                stats = sink.by_symbol[symbol] = SymbolStats()
            if accelerated:
                stats.accelerated += 1
                stats.seconds_accelerated += seconds
                stats.memory_saved = max(stats.memory_saved, saved)
            else:
                stats.fallbacks += 1
                stats.seconds_stock += seconds
                stats.reasons[reason or "disabled"] += 1


def wants_synchronize() -> bool:
    """Whether a running profile asks for GPU times."""
    return _synchronizing > 0

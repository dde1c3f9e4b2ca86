"""What each pass saves: the program after it, and its cost before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnn_backend.ir.costs import Cost, cost
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.lower import lower
from gnn_backend.ir.passes import DEFAULT, Options, optimise
from gnn_backend.ir.values import Program, Value

#: Operators that a kernel is launched for; the others are computed on the way.
_LAUNCHED = ("linear", "weight_grad", "reduce", "matmul")


@dataclass(frozen=True)
class Saving:
    """What a pass saves.

    Attributes
    ----------
    before, after : Cost
    gone, made : tuple of Value
        Products and reductions that it did away with, and those in their place.
    """

    before: Cost
    after: Cost
    gone: tuple[Value, ...]
    made: tuple[Value, ...]

    @property
    def rows(self) -> int:
        """Rows of products saved; below 0: added."""
        return self.before.rows - self.after.rows

    @property
    def flops(self) -> int:
        """Operations saved."""
        return self.before.flops - self.after.flops

    @property
    def bytes(self) -> int:
        """Traffic saved."""
        return self.before.bytes - self.after.bytes

    def __str__(self) -> str:
        rows = f"product rows {self.before.rows:,} -> {self.after.rows:,}"
        flops = f"MFLOP {self.before.flops / 1e6:,.1f} -> {self.after.flops / 1e6:,.1f}"
        moved = f"MB {self.before.bytes / 1e6:,.1f} -> {self.after.bytes / 1e6:,.1f}"
        return f"{rows}, {flops}, {moved}"


@dataclass(frozen=True)
class Report:
    """A pass that changed a program.

    Attributes
    ----------
    name : str
    program : Program
        After it.
    saving : Saving
    """

    name: str
    program: Program
    saving: Saving

    def __str__(self) -> str:
        return f"{self.name}: {self.saving}"


class Recorder:
    """Notes what is left of a program after each pass; what ``optimise`` takes as ``say``.

    Parameters
    ----------
    program : Program, optional
        Before the first; by default that of the first call.
    sizes : mapping of Domain to int
        Rows of each domain.
    itemsize : int
        Bytes of a number.

    Attributes
    ----------
    start : Program or None
        Before the first pass.
    reports : list of Report
        In the order in which passes ran, those that changed nothing left out.
    """

    def __init__(
        self, sizes: Mapping[Domain, int], program: Program | None = None, itemsize: int = 4
    ) -> None:
        self.start = program
        self.reports: list[Report] = []
        self._sizes, self._itemsize = sizes, itemsize
        self._last = None if program is None else (program, self._cost(program))

    def _cost(self, program: Program) -> Cost:
        return cost(lower(program), self._sizes, self._itemsize)

    def __call__(self, name: str, changed: Program) -> None:
        """Note what a pass made."""
        now = changed, self._cost(changed)
        if self._last is None:
            self.start = changed
        elif self._last[0].outputs != changed.outputs:
            gone, made = _difference(self._last[0], changed)
            self.reports.append(Report(name, changed, Saving(self._last[1], now[1], gone, made)))
        self._last = now


def reports(
    program: Program,
    sizes: Mapping[Domain, int],
    options: Options = DEFAULT,
    itemsize: int = 4,
) -> list[Report]:
    """Optimise a program, and say what each pass saves.

    Parameters
    ----------
    program : Program
    sizes : mapping of Domain to int
        Rows of each domain.
    options : Options
    itemsize : int
        Bytes of a number.

    Returns
    -------
    list of Report
        In the order in which passes ran, those that changed nothing left out.
    """
    recorder = Recorder(sizes, program, itemsize)
    optimise(program, sizes, options, say=recorder)
    return recorder.reports


def _difference(before: Program, after: Program) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    old, new = ([v for v in p.values() if v.op in _LAUNCHED] for p in (before, after))
    gone, made = set(old) - set(new), set(new) - set(old)
    return tuple(v for v in old if v in gone), tuple(v for v in new if v in made)

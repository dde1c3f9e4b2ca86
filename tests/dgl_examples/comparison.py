"""Whether two runs of an example did the same."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
from typing import TYPE_CHECKING, Any

from tests.dgl_examples.catalogue import Example

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: its exit code, what it printed, and its record (empty if it failed)."""

    code: int
    printed: str
    errors: str
    record: dict[str, Any]

    @property
    def step_ms(self) -> float:
        """Median time from one step to the next, evaluation included."""
        moments = self.record["moments"]
        steps = [after - before for before, after in itertools.pairwise(moments)]
        return 1e3 * statistics.median(steps) if steps else 0.0

    def failure(self) -> str:
        """Last lines of the errors of a run that failed."""
        return " | ".join(line.strip() for line in self.errors.strip().splitlines()[-3:])


def accuracy(example: Example, printed: str) -> float | None:
    """Mean of the last accuracies that a script printed; None if there are none."""
    found = [float(text) for text in re.findall(example.accuracy, printed)]
    return statistics.fmean(found[-example.last :]) if found else None


def relative_differences(stock: list[float], ours: list[float]) -> list[float]:
    """|difference| / |stock| of each pair; NaN differs from everything."""
    return [
        0.0 if a == b else abs(a - b) / max(abs(a), 1e-30)
        for a, b in zip(stock, ours, strict=False)
    ]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The comparison of a stock run with an accelerated one; it passed without ``problems``."""

    example: Example
    steps: int
    problems: tuple[str, ...]
    losses: tuple[list[float], list[float]] = ((), ())  # type: ignore[assignment]
    difference: float | None = None
    accuracy: tuple[float | None, float | None] = (None, None)
    step_ms: tuple[float, float] | None = None
    seconds: tuple[float, float] | None = None
    device: str = ""
    profile: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Everything, in plain types."""
        row = {key: value for key, value in vars(self).items() if key != "example"}
        listed = dataclasses.asdict(self.example)
        return {"example": listed, "passed": self.passed, **row}


def judge(example: Example, stock: Run, ours: Run, mode: str, steps: int) -> Verdict:
    """Compare the runs.

    Parameters
    ----------
    example : Example
    stock, ours : Run
    mode : {"cpu", "standin", "cuda"}
        Of our run. But for ``cpu``, graphs have to have been resident, and on ``cuda`` some call on
        a kernel, if any operator was called.
    steps : int
        Losses to compare from the start.
    """
    failed = [
        f"{name}: exit code {run.code}: {run.failure()}"
        for name, run in (("stock", stock), (mode, ours))
        if run.code or not run.record
    ]
    if failed:
        return Verdict(example, steps, tuple(failed))
    losses = stock.record["losses"], ours.record["losses"]
    difference, problems = _losses(example, *losses, steps)
    found = accuracy(example, stock.printed), accuracy(example, ours.printed)
    problems += _accuracies(example, *found)
    problems += _places(mode, ours.record)
    return Verdict(
        example,
        steps,
        tuple(problems),
        losses=(losses[0][:steps], losses[1][:steps]),
        difference=difference,
        accuracy=found,
        step_ms=(stock.step_ms, ours.step_ms),
        seconds=(stock.record["seconds"], ours.record["seconds"]),
        device=ours.record["device"],
        profile=ours.record["profile"],
    )


def _losses(
    example: Example, stock: list[float], ours: list[float], steps: int
) -> tuple[float | None, list[str]]:
    """The largest difference, and what is wrong."""
    if not stock or len(stock) != len(ours):
        return None, [f"number of steps: stock {len(stock)}, ours {len(ours)}"]
    if example.sampled:
        quarter = max(len(stock) // 4, 1)
        first, last = (statistics.fmean(part) for part in (ours[:quarter], ours[-quarter:]))
        difference = relative_differences([statistics.fmean(stock[-quarter:])], [last])[0]
        problems = [] if last < first else [f"the loss does not fall: {first:.4g} to {last:.4g}"]
    else:
        differences = relative_differences(stock[:steps], ours[:steps])
        difference = max(differences, key=lambda value: (math.isnan(value), value))
        problems = []
    if not difference <= example.loss_tolerance:  # NaN as well
        problems.append(f"losses differ by {difference:.1e}, over {example.loss_tolerance:.1e}")
    return difference, problems


def _places(mode: str, record: dict[str, Any]) -> list[str]:
    """Equal losses prove nothing if all of it ran elsewhere."""
    if mode == "cpu":
        return []
    profile = record["profile"]
    if mode == "cuda" and profile["fallbacks"] and not profile["accelerated"]:
        return [f"no call ran on a kernel: {profile['reasons']}"]
    return [] if record["resident"] else ["no graph was resident"]


def _accuracies(example: Example, stock: float | None, ours: float | None) -> list[str]:
    if stock is None or ours is None:
        return [f"no accuracy printed that matches {example.accuracy!r}"]
    if not abs(stock - ours) <= example.accuracy_tolerance:
        return [f"accuracy {stock:.4f} and {ours:.4f}, over {example.accuracy_tolerance} apart"]
    return []


def table(verdicts: list[Verdict], mode: str) -> Table:
    """One row an example."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, title=f"DGL's examples: stock on the CPU, and {mode}")
    shown.add_column("example", no_wrap=True)
    for name in ("steps", "loss", "difference", "accuracy", "calls", "detours", "step"):
        shown.add_column(name, justify="right")
    shown.add_column("result")
    for verdict in verdicts:
        cells = [""] * 7 if verdict.step_ms is None else _cells(verdict)
        result = "passed" if verdict.passed else escape("\n".join(verdict.problems))
        shown.add_row(verdict.example.id, *cells, result)
    shown.caption = (
        "loss: first to last of the steps compared      calls: on kernels / fallen back\n"
        "difference: largest relative one, or of the mean of the last quarter where sampled\n"
        "accuracy and median time from step to step: stock, ours"
    )
    return shown


def _cells(verdict: Verdict) -> list[str]:
    assert verdict.step_ms is not None
    first, last = verdict.losses[1][0], verdict.losses[1][-1]
    sampled = " (sampled)" if verdict.example.sampled else ""
    difference = "-" if verdict.difference is None else f"{verdict.difference:.1e}"
    profile = verdict.profile
    return [
        str(len(verdict.losses[1])),
        f"{first:.4g} - {last:.4g}",
        difference + sampled,
        ", ".join("-" if value is None else f"{value:.4f}" for value in verdict.accuracy),
        f"{profile['accelerated']} / {profile['fallbacks']}",
        str(sum(profile["detours"].values())),
        "{:.1f}, {:.1f} ms".format(*verdict.step_ms),
    ]

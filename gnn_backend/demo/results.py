"""What the demonstration found, and the one table that shows it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from gnn_backend.bench.resident import Measurement
from gnn_backend.demo.training import Outcome

if TYPE_CHECKING:
    from rich.table import Table

_MIB = 2**20


class Figures(NamedTuple):
    """Stock's value and ours of what a run costs."""

    milliseconds: tuple[float, float]
    mebibytes: tuple[float | None, float | None]


@dataclasses.dataclass(frozen=True)
class Training:
    """One script, trained stock and accelerated from the same seed.

    ``device`` is that of the accelerated run, ``stock_device`` that of the stock run where it is
    another.
    """

    title: str
    device: str
    stock: Outcome
    ours: Outcome
    stock_device: str = ""

    @property
    def place(self) -> str:
        """The device, or both, in words."""
        if self.stock_device in ("", self.device):
            return self.device
        return f"{self.device}; stock: {self.stock_device}"

    @property
    def label(self) -> str:
        """The title, with the devices where there are two."""
        return self.title if self.place == self.device else f"{self.title} ({self.place})"

    def figures(self) -> Figures:
        runs = self.stock, self.ours
        seconds = [run.result["seconds_per_step"] for run in runs]
        return Figures(
            (seconds[0] * 1e3, seconds[1] * 1e3),
            (_mebibytes(self.stock.peak_bytes), _mebibytes(self.ours.peak_bytes)),
        )


@dataclasses.dataclass(frozen=True)
class Layer:
    """Forward and backward of one layer on the CPU, stock and accelerated; ``sizes`` in words."""

    title: str
    sizes: str
    stock: Measurement
    ours: Measurement

    def figures(self) -> Figures:
        return Figures(
            (self.stock.forward_backward_ms, self.ours.forward_backward_ms),
            (_mebibytes(self.stock.peak_bytes), _mebibytes(self.ours.peak_bytes)),
        )


@dataclasses.dataclass
class Results:
    """Everything measured; ``missing`` maps a title to what to install."""

    trainings: list[Training] = dataclasses.field(default_factory=list)
    layers: list[Layer] = dataclasses.field(default_factory=list)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON."""
        return dataclasses.asdict(self)


def table(results: Results) -> Table:
    """The results as one rich table: a pair of rows (stock, accelerated) a run."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, title="Stock and accelerated, same seed", pad_edge=False)
    shown.add_column("run", min_width=20)
    shown.add_column("")
    for name in ("loss", "accuracy", "step", "speed", "memory", "calls", "launches"):
        shown.add_column(name, justify="right")
    shown.add_column("largest relative\ndifference", no_wrap=True)
    for training in results.trainings:
        _add_training(shown, training)
    for layer in results.layers:
        _add_layer(shown, layer)
    for title, remedy in results.missing.items():
        shown.add_row(title, "missing", *[""] * 7, escape(remedy), end_section=True)
    shown.caption = (
        "step: median time of forward, backward and, in training, the optimizer\n"
        "memory: peak above the warmed-up process      calls: accelerated / fallen back\n"
        "layer: GATv2Conv alone, forward and backward"
    )
    return shown


def _add_training(shown: Table, training: Training) -> None:
    figures = training.figures()
    for which, run in enumerate((training.stock, training.ours)):
        ours = which == 1
        shown.add_row(
            training.place if ours else training.title,
            "accelerated" if ours else "stock",
            f"{run.result['losses'][-1]:.4f}",
            _quality(run),
            *_cost(figures, which),
            f"{run.accelerated} / {run.fallbacks}",
            str(run.launches),
            _notes(training) if ours else "",
            end_section=ours,
        )


def _add_layer(shown: Table, layer: Layer) -> None:
    figures = layer.figures()
    for which, variant in enumerate(("stock", "accelerated")):
        title = f"{layer.sizes}, cpu" if which else layer.title
        cells = _cost(figures, which)
        shown.add_row(title, variant, "", "", *cells, "", "", "", end_section=which == 1)


def _quality(run: Outcome) -> str:
    """Test accuracy, and the area under the ROC curve where the script reports it."""
    accuracy = f"{run.result['accuracy']['test']:.2%}"
    area = run.result.get("test_roc_auc")
    return accuracy if area is None else f"{accuracy}\nAUC {area:.4f}"


def _notes(training: Training) -> str:
    """Differences, a line each, and reason codes of the calls that fell back."""
    lines = [f"{value:.1e}  {name}" for name, value in training.ours.differences.items()]
    lines += [f"fell back: {code} ({n})" for code, n in training.ours.reasons.items()]
    return "\n".join(lines)


def _cost(figures: Figures, which: int) -> tuple[str, str, str]:
    """Step time, speed as a multiple of stock's, and memory."""
    ms, mib = figures.milliseconds[which], figures.mebibytes[which]
    return (
        f"{ms:,.1f} ms" if ms < 1000 else f"{ms / 1000:,.2f} s",
        f"{figures.milliseconds[0] / ms:.1f} x" if which else "",
        "-" if mib is None else f"{mib:,.0f} MiB" if mib < 1024 else f"{mib / 1024:,.2f} GiB",
    )


def _mebibytes(count: int | None) -> float | None:
    return None if count is None else count / _MIB

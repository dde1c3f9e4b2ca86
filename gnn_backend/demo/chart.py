"""The demonstration's picture: loss curves, step times and peak memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnn_backend.demo.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STOCK, _OURS = "#9aa0a6", "#1a73e8"


def save(results: Results, path: Path) -> None:
    """Draw one row of panels: a loss curve a script, then step times, then peak memory.

    Parameters
    ----------
    results : Results
        With at least one training or layer in it.
    path : Path
        PNG file to write; its folder is made.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    panels = len(results.trainings) + 2
    figure, axes = pyplot.subplots(1, panels, figsize=(4.2 * panels, 4), layout="constrained")
    for axis, training in zip(axes, results.trainings, strict=False):
        _losses(axis, training.label, training.stock.result, training.ours.result)
    pairs = {t.label: t.figures() for t in results.trainings}
    pairs |= {layer.title: layer.figures() for layer in results.layers}
    _bars(axes[-2], "Step time (ms)", {k: v.milliseconds for k, v in pairs.items()})
    _bars(axes[-1], "Peak memory (MiB)", {k: v.mebibytes for k, v in pairs.items()})
    axes[-1].tick_params(labelleft=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _losses(axis: Axes, title: str, stock: dict[str, Any], ours: dict[str, Any]) -> None:
    axis.plot(stock["losses"], color=_STOCK, linewidth=4, label="stock")
    axis.plot(ours["losses"], color=_OURS, linewidth=1.2, label="accelerated")
    axis.set(title=f"Loss: {title}", xlabel="epoch")
    axis.legend()


def _bars(axis: Axes, title: str, pairs: Mapping[str, tuple[float | None, float | None]]) -> None:
    """Horizontal pairs of bars, as shares of stock, each with its own value."""
    for position, values in enumerate(pairs.values()):
        for offset, value, colour in zip((-0.2, 0.2), values, (_STOCK, _OURS), strict=True):
            if value is None or values[0] is None:
                continue
            share = value / max(values[0], 1e-9)
            bar = axis.barh(position + offset, share, height=0.36, color=colour)
            axis.bar_label(bar, [f"{value:,.1f}" if value < 100 else f"{value:,.0f}"], padding=3)
    axis.set_yticks(range(len(pairs)), ["\n".join(title.rsplit(", ", 1)) for title in pairs])
    axis.set(title=title, xlabel="share of stock")
    axis.margins(x=0.2)
    axis.invert_yaxis()

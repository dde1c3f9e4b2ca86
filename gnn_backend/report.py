"""Tables for people: profiles, explanations, comparisons, patches."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from gnn_backend.compare import Comparison
    from gnn_backend.explanation import Explanation
    from gnn_backend.patching import PatchInfo
    from gnn_backend.profile import Profile


def render(table: Table, width: int = 110) -> str:
    """Return a table as plain text."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def profile_table(profile: Profile) -> Table:
    """Accelerated and stock calls of each symbol, and the kernels that were launched."""
    table = _table("Calls", ["symbol"], ["accelerated", "stock", "ms accelerated", "ms stock",
                                         "memory saved"], ["reasons"])  # fmt: skip
    for symbol, stats in sorted(profile.by_symbol.items()):
        table.add_row(
            symbol,
            str(stats.accelerated),
            str(stats.fallbacks),
            f"{1e3 * stats.seconds_accelerated:.2f}",
            f"{1e3 * stats.seconds_stock:.2f}",
            nbytes(stats.memory_saved),
            _counts(stats.reasons),
        )
    launched = _counts({f"{target}:{name}": n for (target, name), n in profile.launches.items()})
    table.caption = f"kernel launches: {launched or 'none'}"
    if profile.detours:
        table.caption += f"\nDGL functions answered through the CPU: {_counts(profile.detours)}"
    return table


def explanation_table(explanation: Explanation) -> Table:
    """One line for each graph layer of a model."""
    table = _table("Layers", ["layer", "symbol", "runs", "reason", "what to do"], [], [])
    for layer in explanation.layers:
        runs = "fused" if layer.accelerated else "stock"
        name = layer.name or "(model)"
        table.add_row(name, layer.symbol, runs, layer.reason or "", layer.explanation or "")
    if not explanation.sampled:
        table.caption = "without a sample call: only what the layers themselves show"
    elif explanation.choices:
        table.caption = "\n".join(explanation.choices)
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Errors of the output and of each gradient, time and memory."""
    errors = {
        "max abs error": comparison.max_abs_error,
        "max rel error": comparison.max_rel_error,
    }
    if comparison.rounding:
        errors |= {"float64 to stock": comparison.rounding,
                   "float64 to ours": comparison.own_rounding}  # fmt: skip
    table = _table("Against stock", ["tensor"], [*errors], [])
    for name in comparison.max_abs_error:
        table.add_row(name, *(f"{by_name[name]:.2e}" for by_name in errors.values()))
    runs = "accelerated" if comparison.accelerated else f"stock ({comparison.reason})"
    time, peak = comparison.ms, comparison.peak_bytes
    table.caption = (
        f"{runs}; reference: {comparison.reference}; "
        f"forward+backward ms: {_number(time['backend'])} (stock {_number(time['stock'])}); "
        f"peak: {nbytes(peak['backend'])} (stock {nbytes(peak['stock'])})"
    )
    return table


def patches_table(patches: Iterable[PatchInfo]) -> Table:
    """What is patched, and by what."""
    table = _table("Patches", ["symbol", "target", "active", "replaced by", "note"], [], [])
    for patch in patches:
        active = "yes" if patch.active else "no"
        table.add_row(patch.symbol, patch.target, active, patch.replaced_by or "", patch.note)
    return table


def nbytes(count: int | None) -> str:
    """Return a byte count with a unit; a dash where it is unknown."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _table(title: str, names: list[str], numbers: list[str], rest: list[str]) -> Table:
    table = Table(title=title)
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    for name in rest:
        table.add_column(name, overflow="fold")
    return table


def _counts(counter: Mapping[str, int]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in sorted(counter.items()))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"

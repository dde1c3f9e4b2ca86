"""Times of paths, and regrets, as tables for people and for documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from gnn_backend.bench.regret import Regret, summary

_HEADINGS = ("pass", "dtype", "passes", "median regret", "worst", "where", "chosen", "best")


def path_tables(document: dict[str, Any]) -> list[Table]:
    """One table for each graph, dtype and width of a results document."""
    device = document["device"] or {}
    caption = f"{device.get('name', 'unknown device')}, {document['date']}; milliseconds"
    return [_table(row, caption) for row in document["graphs"]]


def _table(row: dict[str, Any], caption: str) -> Table:
    edges = row["num_edges"] / max(1.0, row["tiles"]["dst"])
    table = Table(
        title=f"{row['graph']}, {row['dtype']}, width {row['width']}: {row['num_nodes']:,} nodes, "
        f"{row['num_edges']:,} edges, {edges:.0f} edges in a tile",
        caption=caption,
    )
    table.add_column("pass")
    for heading in ("choice", "ms", "over the best"):
        table.add_column(heading, justify="right")
    for case, times in row["times"].items():
        best = min(time for time in times.values() if time)
        for name, time in sorted(times.items(), key=lambda item: item[1] or float("inf")):
            shown = ("out of memory", "") if time is None else (f"{time:.4g}", f"{time / best:.2f}")
            table.add_row(case, name, *shown)
            case = ""
    return table


def regret_rows(regrets: list[Regret]) -> list[tuple[str, ...]]:
    """A line for each pass and dtype, and one of all."""
    groups: dict[tuple[str, str], list[Regret]] = {}
    for one in regrets:
        groups.setdefault((one.measured.case, one.measured.dtype), []).append(one)
    lines = [_line(*key, group) for key, group in groups.items()]
    return [*lines, _line("all", "", regrets)]


def _line(case: str, dtype: str, group: list[Regret]) -> tuple[str, ...]:
    figures, worst = summary(group), max(group, key=lambda one: one.regret)
    where = f"{worst.measured.graph}, width {worst.measured.width}"
    return (case, dtype, f"{figures['count']}", f"{figures['median']:.1%}",
            f"{figures['worst']:.1%}", where, worst.chosen, worst.best)  # fmt: skip


def regret_table(title: str, regrets: list[Regret]) -> Table:
    """Regrets for people."""
    table = Table(title=title)
    for index, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if 2 <= index <= 4 else "left")
    for line in regret_rows(regrets):
        table.add_row(*line)
    return table


def markdown(regrets: list[Regret]) -> str:
    """The same as a table in Markdown."""
    rule = ("---",) * len(_HEADINGS)
    lines: Iterable[tuple[str, ...]] = (_HEADINGS, rule, *regret_rows(regrets))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

"""Results of the typed linear's benchmark as tables for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

YARDSTICK = "torch.mm, one weight"


def typed_linear_tables(document: dict[str, Any]) -> list[Table]:
    """One table for each graph and precision of a results document."""
    device = document["device"] or {}
    caption = f"{device.get('name', 'unknown device')}, {document['date']}"
    return [_table(row, caption) for row in document["graphs"]]


def _table(row: dict[str, Any], caption: str) -> Table:
    table = Table(
        title=f"{row['graph']}, {row['precision']}, {row['inner']} to {row['outer']}: "
        f"{row['rows']:,} rows of {row['types']} types, largest error {row['max_rel_error']:.1e}",
        caption=caption,
    )
    for heading in ("pass", "way"):
        table.add_column(heading)
    for heading in ("ms", "TFLOP/s", f"over {YARDSTICK}"):
        table.add_column(heading, justify="right")
    for case, times in row["times"].items():
        base = times[YARDSTICK]
        for way, time in times.items():
            table.add_row(case, way, *_cells(time, row["operations"], base, way))
            case = ""
    return table


def _cells(time: float | None, operations: int, base: float | None, way: str) -> tuple[str, ...]:
    if time is None:
        return "out of memory", "", ""
    rate = "" if "alone" in way else f"{operations / time / 1e9:.1f}"
    return f"{time:.4g}", rate, f"{time / base:.2f}" if base else ""

"""Results of the aggregation's benchmark as tables for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from gnn_backend.bench.aggregation import LIMITS


def aggregation_tables(document: dict[str, Any]) -> list[Table]:
    """One table for each graph, dtype and width of a results document."""
    device = document["device"] or {}
    caption = f"{device.get('name', 'unknown device')}, {document['date']}"
    return [_table(row, caption) for row in document["graphs"]]


def _table(row: dict[str, Any], caption: str) -> Table:
    table = Table(
        title=f"{row['graph']}, {row['dtype']}, width {row['width']}: {row['num_nodes']:,} nodes, "
        f"{row['num_edges']:,} edges, largest in-degree {row['max_in_degree']:,}",
        caption=caption,
    )
    for heading in ("pass", "against"):
        table.add_column(heading)
    for heading in ("ms", "ratio", "over its bytes", "limit", "eager ms", "launches"):
        table.add_column(heading, justify="right")
    for name, key in (("", "yardstick"), (" by source", "yardstick_by_source")):
        limit = row[key]
        if limit is not None:
            for which in ("g1", "g2"):
                table.add_row(f"yardstick {which}{name}", "", _ms(limit[f"{which}_ms"]))
    for name, figures in row["operators"].items():
        bound = LIMITS.get(name)
        table.add_row(
            name, figures.get("against", "-"), _ms(figures["ms"]), _ratio(figures["ratio"]),
            _ratio(figures["over_bytes"]), "" if bound is None else f"<= {bound}",
            _ms(figures["eager_ms"]), str(figures["launches"] or "-"),
        )  # fmt: skip
    for name, value in row["stock"].items():
        shown = (_ms(value), "") if isinstance(value, float) else ("-", value)
        table.add_row(f"torch: {name}, eager", shown[1], "", "", "", "", shown[0])
    return table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 1 else f"{value:,.2f}"

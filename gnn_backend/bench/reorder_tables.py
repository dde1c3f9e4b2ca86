"""Results of the study of reordering as tables for people."""

from __future__ import annotations

import statistics
from typing import Any

from rich.table import Table

from gnn_backend.bench.reorder import MOVED, NONE, summary


def reorder_tables(document: dict[str, Any]) -> list[Table]:
    """A table of times for each graph of a results document, then one of what is best."""
    device = document["device"] or {}
    caption = f"{device.get('name', 'unknown device')}, {document['date']}"
    rows = document["graphs"]
    return [*(_graph_table(row, caption) for row in rows), _summary_table(rows, caption)]


def _graph_table(row: dict[str, Any], caption: str) -> Table:
    orders = row["orders"]
    table = Table(
        title=f"{row['graph']}: {row['num_nodes']:,} nodes, {row['num_edges']:,} edges, "
        f"in-degree {row['mean_in_degree']:.1f}, {row['max_in_degree']:,} at most",
        caption=caption + _moving(orders),
    )
    table.add_column("ms (times as fast)")
    for name in orders:
        table.add_column(name, justify="right")
    seconds = (order["seconds"] for order in orders.values())
    table.add_row("seconds to reorder", *("-" if s is None else f"{s:.2f}" for s in seconds))
    for case, plain in orders[NONE]["cases"].items():
        cells = []
        for name, order in orders.items():
            ms = order["cases"][case]["ms"]
            cells.append(_ms(ms) if name == NONE else f"{_ms(ms)} ({plain['ms'] / ms:.2f})")
        table.add_row(case, *cells)
    return table


def _moving(orders: dict[str, Any]) -> str:
    moving = orders[MOVED]["moving_ms"]
    cost = f"a gather of a table {_ms(moving['gather'])}, a scatter {_ms(moving['scatter'])} ms"
    return f"; {MOVED}: tables moved by the caller, not counted: {cost}"


def _summary_table(rows: list[dict[str, Any]], caption: str) -> Table:
    table = Table(title="the fastest order, and what the model would take", caption=caption)
    for heading in ("graph", "case", "fastest", "times as fast", "chosen", "regret"):
        numeric = heading in ("times as fast", "regret")
        table.add_column(heading, justify="right" if numeric else "left")
    regrets = []
    for row in rows:
        for each in summary(row):
            regret = each["regret"]
            table.add_row(
                row["graph"], each["case"], each["best"], f"{each['gain']:.2f}",
                each["chosen"] or "-", "-" if regret is None else f"{100 * regret:.1f} %",
            )  # fmt: skip
            regrets += [] if regret is None else [regret]
    if regrets:
        middle, worst = 100 * statistics.median(regrets), 100 * max(regrets)
        table.caption = f"{caption}; regret: median {middle:.1f} %, worst {worst:.1f} %"
    return table


def _ms(value: float) -> str:
    return f"{value:.4f}" if value < 1 else f"{value:,.2f}"

"""Results of the relational layers' benchmark as tables for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

OURS = "ours"


def relational_tables(document: dict[str, Any]) -> list[Table]:
    """One table for each graph of a results document."""
    device = document["device"] or {}
    caption = f"{device.get('name', 'unknown device')}, {document['date']}"
    graphs: dict[str, list[dict[str, Any]]] = {}
    for row in document["graphs"]:
        graphs.setdefault(row["graph"], []).append(row)
    return [_table(rows, caption) for rows in graphs.values()]


def _table(rows: list[dict[str, Any]], caption: str) -> Table:
    first = rows[0]
    table = Table(
        title=f"{first['graph']}: {first['num_nodes']:,} nodes, {first['num_edges']:,} edges, "
        f"{first['num_edge_types']} types",
        caption=caption,
    )
    for heading in ("model", "way"):
        table.add_column(heading)
    for heading in ("inference ms", "training ms", "over ours", "peak MiB"):
        table.add_column(heading, justify="right")
    for row in rows:
        name = row["model"] + (f", {row['heads']} heads" if row["heads"] > 1 else "")
        base = row["ways"].get(OURS, {}).get("training_ms")
        for way, found in row["ways"].items():
            table.add_row(name, way, *_cells(found, base))
            name = ""
    return table


def _cells(found: dict[str, Any], base: float | None) -> tuple[str, ...]:
    time, peak = found["training_ms"], found["peak_bytes"]
    if time is None:
        return "out of memory", "", "", ""
    over = f"{time / base:.2f}" if base else ""
    inference = f"{found['inference_ms']:.3f}"
    return inference, f"{time:.3f}", over, "" if peak is None else f"{peak / 2**20:,.0f}"

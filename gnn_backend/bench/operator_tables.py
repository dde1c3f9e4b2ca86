"""Results of the operators' benchmark as tables for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from gnn_backend.bench.operators import LIMITS


def operator_tables(document: dict[str, Any]) -> list[Table]:
    """One table for each graph and dtype of a results document."""
    device = document["device"] or {}
    caption = f"{device.get('name', 'unknown device')}, {document['date']}"
    return [_table(row, caption) for row in document["graphs"]]


def _table(row: dict[str, Any], caption: str) -> Table:
    table = Table(
        title=f"{row['graph']}, {row['dtype']}: {row['num_nodes']:,} nodes, "
        f"{row['num_edges']:,} edges, largest in-degree {row['max_in_degree']:,}",
        caption=caption,
    )
    for heading in ("operator", "against", "limit"):
        table.add_column(heading)
    for heading in ("ms", "ratio", "ms, CSR order", "ratio", "launches"):
        table.add_column(heading, justify="right")
    if row["yardstick"] is not None:
        table.add_row("yardstick g1", "", "", _ms(row["yardstick"]["g1_ms"]), "", "", "", "")
    cusparse = row["cusparse_sum_ms"]
    shown = _ms(cusparse) if isinstance(cusparse, float) else "-"
    table.add_row("cuSPARSE sum, eager", "", "", shown, "", "", "", "")
    if gather := row.get("edge_gather_ms"):
        table.add_row("gather of edge values alone", "", "", _ms(gather), "", "", "", "")
    given, ordered = row["operators"]["given"], row["operators"]["csr"]
    for name, first in given.items():
        second, limit = ordered[name], LIMITS.get(name)
        cells = [_ms(first["ms"]), _ratio(first), _ms(second["ms"]), _ratio(second)]
        bound = "" if limit is None else f"<= {limit}"
        launches = str(first.get("launches", "-"))
        table.add_row(name, first.get("against", "-"), bound, *cells, launches)
    for name, times in _dgl_rows(row.get("dgl")):
        table.add_row(name, "", "", *times, "", "", "")
    return table


def _dgl_rows(figures: dict[str, Any] | None) -> Iterator[tuple[str, tuple[str, str]]]:
    """Name, milliseconds, and for the moved graph its ratio."""
    if figures is None:
        return
    if "copy_ms" in figures:  # older results have another limit
        ratio = figures["move_ms"] / (2 * figures["copy_ms"] + figures["sort_ms"])
        name = "DGL: graph to the device, over 2 copies + sort"
        yield name, (_ms(figures["move_ms"]), f"{ratio:.2f}")
    for name, times in figures["operators"].items():
        yield f"DGL: {name}, eager", (_ms(times["forward_ms"]), "")
        yield f"DGL: {name} with backward, eager", (_ms(times["forward_backward_ms"]), "")


def _ratio(figures: dict[str, Any]) -> str:
    return "-" if figures["ratio"] is None else f"{figures['ratio']:.2f}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 1 else f"{value:,.2f}"

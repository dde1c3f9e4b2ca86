"""Results of the attention benchmark as tables for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from gnn_backend.bench.attention import RATIO_LIMITS, VARIANT_LIMITS
from gnn_backend.bench.attention_operators import AttentionOperator, operator
from gnn_backend.bench.shapes import medians

_LAYERS = (
    ("pyg", "PyG {layer}, stock"),
    ("pyg_message_passing", "PyG message passing alone, stock"),
    ("pyg_accelerated", "PyG {layer}, accelerated"),
    ("dgl", "DGL {layer}, stock"),
    ("dgl_accelerated", "DGL {layer}, accelerated"),
)


def attention_tables(document: dict[str, Any]) -> list[Table]:
    """One table for each graph and dtype of a results document, then one of ratios."""
    device = document["device"] or {}
    title = f"{device.get('name', 'unknown device')}, {document['date']}"
    op = operator(document["operator"])
    tables = [_row_table(op, row, title) for row in document["graphs"]]
    return [*tables, _ratio_table(op, document)]


def _row_table(op: AttentionOperator, row: dict[str, Any], title: str) -> Table:
    table = Table(
        title=f"{row['graph']}, {row['dtype']}: {row['num_nodes']:,} nodes, "
        f"{row['num_edges']:,} edges, largest in-degree {row['max_in_degree']:,}",
        caption=title,
    )
    table.add_column("milliseconds")
    for heading in ("forward", "forward+backward", "peak MiB"):
        table.add_column(heading, justify="right")
    limit, ours = row["yardstick"], row["ours"]
    if limit is not None:
        each = [g1 * limit["g1_ms"] + g2 * limit["g2_ms"] for g1, g2 in (op.forward, op.both)]
        names = [name.rpartition("_over_")[2].replace("_", " + ") for name in op.ratios()]
        table.add_row(f"yardstick: {', '.join(names)}", *map(_ms, each), "-")
    if "forward_replay_ms" in ours:
        replay = ours["forward_replay_ms"], ours["forward_backward_replay_ms"]
        table.add_row("operator, graph replay", *map(_ms, replay), "-")
    _add(table, "operator, eager", ours)
    paths = row.get("paths", {})
    for name in ("rows", "tiles"):
        if name in paths:
            forward, both = (f"{timed}_replay_ms" for timed in ("forward", "forward_backward"))
            replay = paths[name][forward], paths[name][both]
            table.add_row(f"operator over {name}, graph replay", *map(_ms, replay), "-")
    for name, measured in row.get("variants", {}).items():
        table.add_row(f"operator with {name}, graph replay", *_variant_cells(name, measured))
        table.add_row("... edges in CSR order", *_variant_cells(name, measured["csr_order"]))
    for key, label in _LAYERS:
        _add(table, label.format(layer=op.layer), row["layers"].get(key))
    _add(table, "Turbo-GNN operator, eager", row.get("turbo_gnn"))
    return table


def _variant_cells(name: str, measured: dict[str, Any]) -> list[str]:
    """Times, each with what it costs: over the plain operator, or more than it over own bytes."""
    limit = f" (<= {VARIANT_LIMITS[name]})" if name in VARIANT_LIMITS else ""
    cells = [
        f"{_ms(measured[f'{timed}_replay_ms'])}: {measured[f'{timed}_ratio']:.2f}{limit}"
        for timed in ("forward", "forward_backward")
    ]
    return [*cells, f"{measured['peak_bytes'] / 2**20:,.0f}"]


def _add(table: Table, label: str, figures: dict[str, Any] | str | None) -> None:
    if figures is None:
        return
    if isinstance(figures, str):
        table.add_row(label, figures, "", "")
        return
    times = figures["forward_ms"], figures["forward_backward_ms"]
    peak = figures.get("peak_bytes")
    shown = "-" if peak is None else f"{peak / 2**20:,.0f}"
    table.add_row(label, *map(_ms, times), shown)


def _ratio_table(op: AttentionOperator, document: dict[str, Any]) -> Table:
    rows = document["graphs"]
    names = [n for n in rows[0]["ratios"] if any(r["ratios"][n] is not None for r in rows)]
    table = Table("graph", "dtype", title="ratios (limits in brackets)")
    for name in names:
        limits = RATIO_LIMITS[op.name]
        bound = f" (<= {limits[name]})" if name in limits else ""
        table.add_column(name.replace("_", " ") + bound, justify="right")
    for row in rows:
        cells = ("-" if row["ratios"][n] is None else f"{row['ratios'][n]:.2f}" for n in names)
        table.add_row(row["graph"], row["dtype"], *cells)
    return table


def _ms(value: float) -> str:
    return f"{value:.4f}" if value < 1 else f"{value:,.2f}"


def shape_tables(document: dict[str, Any]) -> list[Table]:
    """For each graph, operator and ratio a table of heads by width; medians in its caption."""
    rows, tables = document["shapes"], []
    for name, middle in medians(rows).items():
        own = [row for row in rows if row["operator"] == name]
        dims = sorted({row["dim"] for row in own})
        for ratio, (_, _, limit) in operator(name).ratios().items():
            bound = f" (<= {limit})" if limit else ""
            table = Table(
                title=f"{name}: {ratio.replace('_', ' ')}{bound}",
                caption=f"median {middle[ratio]:.2f}; {document['date']}",
            )
            table.add_column("graph, heads")
            for dim in dims:
                table.add_column(f"dim {dim}", justify="right")
            for at in dict.fromkeys((row["graph"], row["heads"]) for row in own):
                found = {r["dim"]: r[ratio] for r in own if (r["graph"], r["heads"]) == at}
                table.add_row(f"{at[0]}, {at[1]}", *(f"{found[d]:.2f}" for d in dims))
            tables.append(table)
    return tables


def layer_tables(document: dict[str, Any]) -> list[Table]:
    """Layers against stock: one table for each graph of a results document."""
    device = document["device"]
    threads = [f"{device['threads']} threads"] if "threads" in device else []
    by_graph: dict[str, list[dict[str, Any]]] = {}
    for row in document["layers"]:
        by_graph.setdefault(row["graph"], []).append(row)
    tables = []
    for name, rows in by_graph.items():
        table = Table(
            title=f"{name}: {rows[0]['num_nodes']:,} nodes, {rows[0]['num_edges']:,} edges",
            caption=", ".join((device["name"], *threads, document["date"])),
        )
        table.add_column("forward+backward, ms")
        headings = "stock", "accelerated", "speed", "projections alone", "stock MiB", "ours MiB"
        for heading in headings:
            table.add_column(heading, justify="right")
        for row in rows:
            ms, peak, notes = row["ms"], row["peak_bytes"], row.get("notes", {})
            table.add_row(
                f"{row['host']} {row['layer']}",
                *(notes.get(side) or f"{ms[side]:.2f}" for side in ("stock", "backend")),
                "-" if row["speed"] is None else f"{row['speed']:.2f} x",
                "-" if row["projections_ms"] is None else f"{row['projections_ms']:.1f}",
                *("-" if size is None else f"{size / 2**20:.0f}" for size in peak.values()),
            )
        tables.append(table)
    return tables

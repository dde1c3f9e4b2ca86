"""Results of the wrappers' benchmark as a table for people."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def wrapper_tables(document: dict[str, Any]) -> list[Table]:
    """The table of a results document."""
    settings, device = document["settings"], document["device"] or {}
    name = {"pyg": "HeteroConv", "dgl": "HeteroGraphConv"}[settings["host"]]
    table = Table(
        title=f"{name}: {settings['types']} types of {settings['nodes']:,} nodes, "
        f"{settings['edges']:,} edges a relation, width {settings['width']}",
        caption=f"{device.get('name', 'CPU')}, {document['date']}",
    )
    table.add_column("layer")
    for heading in ("relations", "inference ms", "stock", "speed", "training ms", "stock", "speed",
                    "launches"):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in document["wrappers"]:
        cells = []
        for key in ("inference_ms", "training_ms"):
            ours, theirs = row["backend"][key], row["stock"][key]
            cells += [f"{ours:.2f}", f"{theirs:.1f}", f"{theirs / ours:.1f} x"]
        table.add_row(row["layer"], str(row["relations"]), *cells, str(row["launches"]))
    return [table]

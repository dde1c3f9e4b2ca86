"""Results files of the benchmarks: writing, reading and showing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gnn_backend.cli import output

BENCHMARKS = (
    "attention", "gemm", "layers", "operators", "paths", "reduce", "relational", "reorder",
    "shapes", "spmm", "wrappers",
)  # fmt: skip


def check_file(json_file: Path | None) -> None:
    """Fail before anything is measured if its results could not be written."""
    if json_file is None:
        return
    output.check_writable("--json", json_file.parent)
    if json_file.is_dir():
        output.fail(f"--json: {json_file} is a folder, expected the name of a file")


def write(document: dict[str, Any], json_file: Path | None) -> None:
    """Write the results where that is asked for."""
    if json_file is not None:
        json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def keep(document: dict[str, Any], json_file: Path | None) -> None:
    """Write the results where that is asked for, and show them."""
    write(document, json_file)
    if json_file is not None:
        output.note(f"results in {json_file}")
    show(document)


def read_results(file: Path, benchmarks: tuple[str, ...]) -> dict[str, Any]:
    """The document of a results file of one of these benchmarks."""
    if not file.is_file():
        output.fail(f"no such file: {file}")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # JSONDecodeError and UnicodeDecodeError are the latter
        output.fail(f"{file} is not JSON: {error}")
    if not isinstance(document, dict) or document.get("benchmark") not in benchmarks:
        names = ", ".join(f"`bench {name}`" for name in benchmarks)
        output.fail(f"{file} is no result of {names.replace('bench paths', 'bench spmm --paths')}")
    return document


def show(document: dict[str, Any]) -> None:
    """Print the tables of a document."""
    from gnn_backend.bench.aggregation_tables import aggregation_tables
    from gnn_backend.bench.operator_tables import operator_tables
    from gnn_backend.bench.path_tables import path_tables
    from gnn_backend.bench.relational_tables import relational_tables
    from gnn_backend.bench.reorder_tables import reorder_tables
    from gnn_backend.bench.tables import attention_tables, layer_tables, shape_tables
    from gnn_backend.bench.typed_linear_tables import typed_linear_tables
    from gnn_backend.bench.wrapper_tables import wrapper_tables

    tables = {
        "attention": attention_tables,
        "gemm": typed_linear_tables,
        "layers": layer_tables,
        "operators": operator_tables,
        "paths": path_tables,
        "reduce": aggregation_tables,
        "relational": relational_tables,
        "reorder": reorder_tables,
        "shapes": shape_tables,
        "spmm": aggregation_tables,
        "wrappers": wrapper_tables,
    }
    console = output.console()
    for table in tables[document["benchmark"]](document):
        console.print(table)

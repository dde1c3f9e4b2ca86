"""``bench wrappers``: HeteroConv and HeteroGraphConv against stock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gnn_backend.cli import output, results
from gnn_backend.cli.bench import _listed, _sizes


def wrappers(
    host: Annotated[str, typer.Option(help="pyg or dgl; on a GPU pyg alone.")] = "pyg",
    layer: Annotated[str, typer.Option(help="Names with commas. Default: all.")] = "",
    relations: Annotated[str, typer.Option(help="Numbers of relations, with commas.")] = "200",
    types: Annotated[int, typer.Option(min=1, help="Node types.")] = 10,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of a type.")] = 1000,
    edges: Annotated[int, typer.Option(min=1, help="Edges of a relation.")] = 4000,
    width: Annotated[int, typer.Option(min=4, help="Of features and results.")] = 64,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    repeats: Annotated[int, typer.Option(min=1, help="Samples; the median counts.")] = 7,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results here.")
    ] = None,
) -> None:
    """One layer a relation: inference, training without gradient accumulation, and launches."""
    output.check_choice("--host", host, ("pyg", "dgl"))
    output.check_choice("--device", device, ("cuda", "cpu"))
    from gnn_backend.bench import wrappers as benchmark

    chosen = tuple(_listed(layer)) if layer else ()
    for name in chosen:
        output.check_choice("--layer", name, benchmark.names(host))
    results.check_file(json_file)
    import torch

    if device == "cuda" and host == "dgl":
        output.fail("bench wrappers: stock DGL has no layers on CUDA; pass --device cpu")
    if device == "cuda" and not torch.cuda.is_available():
        output.fail("bench wrappers: torch finds no CUDA device; pass --device cpu")
    settings = benchmark.Settings(
        host, chosen, tuple(_sizes("--relations", relations)), types, nodes, edges, width, device,
        repeats,
    )  # fmt: skip
    results.keep(benchmark.run(settings, output.note), json_file)

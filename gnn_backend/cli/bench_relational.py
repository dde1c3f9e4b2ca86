"""``bench relational``: relational layers, ours with and without each optimization, and PyG's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gnn_backend.cli import output, results
from gnn_backend.cli.bench import _listed, _sizes


def relational(
    graph: Annotated[
        str,
        typer.Option(
            help="Relational graphs by name, or npz files, comma-separated. Named: aifb, mutag, "
            "bgs, am, ogbn-mag, wikikg2, fb15k-237, biokg."
        ),
    ] = "aifb,mutag,bgs,am,ogbn-mag,wikikg2,fb15k-237,biokg",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results here.")
    ] = None,
    model: Annotated[str, typer.Option(help="rgcn, rgat, hgt; several with commas.")] = (
        "rgcn,rgat,hgt"
    ),
    width: Annotated[int, typer.Option(min=1, help="Of features and result.")] = 64,
    heads: Annotated[str, typer.Option(help="Head counts, with commas.")] = "1",
    stock: Annotated[bool, typer.Option(help="Measure PyG's layers as well.")] = True,
    repeats: Annotated[int, typer.Option(min=1, help="Samples; the median counts.")] = 5,
) -> None:
    """RGCN, RGAT and HGT on a GPU: inference, training and peak memory."""
    models = tuple(_listed(model))
    for name in models:
        output.check_choice("--model", name, ("rgcn", "rgat", "hgt"))
    counts = _sizes("--heads", heads)
    if any(width % count for count in counts):
        output.fail(f"--heads: got {heads!r}, expected divisors of the width {width}")
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import relational as benchmark

    if not torch.cuda.is_available():
        output.fail("bench relational: torch finds no CUDA device, and this is measured on one")
    settings = benchmark.Settings(models, width, counts, repeats, stock)
    keep = partial(results.write, json_file=json_file)
    results.keep(benchmark.run(_listed(graph), settings, output.note, keep), json_file)

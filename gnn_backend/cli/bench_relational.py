"""``bench relational``: relational layers, ours by optimization, and the hosts'."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gnn_backend.cli import output, results
from gnn_backend.cli.bench import _listed, _sizes

_NAMED = "aifb,mutag,bgs,am,ogbn-mag,wikikg2,fb15k-237,biokg"


def relational(
    graph: Annotated[
        str | None,
        typer.Option(
            help="Relational graphs by name, or npz files, comma-separated. Named: aifb, mutag, "
            "bgs, am, ogbn-mag, wikikg2, fb15k-237, biokg; and those of --data: umls, fb15k_237, "
            "wn18rr, wordnet30, debian12_packages. Left out: all (on the CPU, those of --data)."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of real graphs; GNN_BACKEND_TEST_DATA where left out."),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results here.")
    ] = None,
    model: Annotated[str, typer.Option(help="rgcn, rgat, hgt; several with commas.")] = (
        "rgcn,rgat,hgt"
    ),
    width: Annotated[int, typer.Option(min=1, help="Of features and result.")] = 64,
    heads: Annotated[str, typer.Option(help="Head counts, with commas.")] = "1",
    stock: Annotated[bool, typer.Option(help="Measure the hosts' layers as well.")] = True,
    repeats: Annotated[int, typer.Option(min=1, help="Samples; the median counts.")] = 5,
) -> None:
    """RGCN, RGAT and HGT: inference, training and peak memory."""
    models = tuple(_listed(model))
    for name in models:
        output.check_choice("--model", name, ("rgcn", "rgat", "hgt"))
    counts = _sizes("--heads", heads)
    if any(width % count for count in counts):
        output.fail(f"--heads: got {heads!r}, expected divisors of the width {width}")
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import relational as benchmark
    from gnn_backend.config import config

    output.check_choice("--device", device, ("cuda", "cpu"))
    if device == "cuda" and not torch.cuda.is_available():
        output.fail("bench relational: torch finds no CUDA device; give --device cpu or use one")
    graphs = _graphs(graph, benchmark.real_graphs(data or config.test_data), device)
    settings = benchmark.Settings(models, width, counts, repeats, stock, device)
    keep = partial(results.write, json_file=json_file)
    results.keep(benchmark.run(graphs, settings, output.note, keep), json_file)


def _graphs(asked: str | None, files: list[str], device: str) -> list[str]:
    """Names and files to measure: what was asked for, real graphs by the names of their files."""
    if asked is not None:
        named = {Path(file).stem: file for file in files}
        return [named.get(name, name) for name in _listed(asked)]
    drawn = _listed(_NAMED) if device == "cuda" else []
    if not drawn + files:
        output.fail(
            "bench relational: no graphs; name some with --graph, or their folder by --data"
        )
    return drawn + files

"""``bench gemm``: rows times the weight of their type, against what torch has for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gnn_backend.cli import output, results
from gnn_backend.cli.bench import _listed

_PRECISIONS = ("float32", "tf32", "bfloat16", "float16")


def gemm(
    graph: Annotated[
        str,
        typer.Option(
            help="Relational graphs by name, or npz files, comma-separated. Named: aifb, mutag, "
            "bgs, am, ogbn-mag, wikikg2, fb15k-237, biokg."
        ),
    ] = "ogbn-mag,wikikg2",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the results here.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="float32, tf32, bfloat16, float16; several with commas.")
    ] = "float32,tf32,bfloat16",
    inner: Annotated[int, typer.Option(min=1, help="Columns of the rows.")] = 64,
    outer: Annotated[int, typer.Option(min=1, help="Columns of the result.")] = 64,
) -> None:
    """The typed linear, its input gradient and its weight gradient, on a GPU."""
    for name in _listed(precision):
        output.check_choice("--precision", name, _PRECISIONS)
    results.check_file(json_file)
    import torch

    from gnn_backend.bench import typed_linear as benchmark

    if not torch.cuda.is_available():
        output.fail("bench gemm: torch finds no CUDA device, and these kernels need one")
    settings = benchmark.Settings(inner, outer, tuple(_listed(precision)))
    results.keep(benchmark.run(_listed(graph), settings, output.note), json_file)

"""``emit``: what a relational program becomes, from its source to the text of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gnn_backend.cli import output

SECTIONS = ("program", "ir", "steps", "source")
_OPTIONS = ("auto", "vanilla", "c", "f", "cf")
_TARGETS = ("cuda", "numba")
_DTYPES = ("float32", "bfloat16", "float16")
_TYPES = ("file", "none", "edge", "edge,node")


def emit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="rgcn, rgat, hgt, or FILE.py:NAME, a program of your own; "
            "beside it, example(relations) returns the arguments of a call.",
        ),
    ],
    graph: Annotated[
        str, typer.Option(metavar="FILE.npz", help="A graph's file, or the name of a drawn one.")
    ],
    types: Annotated[
        str,
        typer.Option(help="Types to use: file (all that it has), edge, 'edge,node', none."),
    ] = "file",
    in_dim: Annotated[int, typer.Option("--in", min=1, help="Width of the features.")] = 64,
    out_dim: Annotated[int, typer.Option("--out", min=1, help="Width of the result.")] = 64,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads, of rgat and hgt.")] = 1,
    options: Annotated[
        str,
        typer.Option(
            help="Optimizations: auto (by the graph's sizes), vanilla (none), c (compact "
            "materialization), f (linear operator reordering), cf."
        ),
    ] = "auto",
    target: Annotated[str, typer.Option(help="cuda or numba; neither needs a GPU.")] = "cuda",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    section: Annotated[
        str | None, typer.Option(help="Only program, ir, steps or source; several with commas.")
    ] = None,
    backward: Annotated[bool, typer.Option(help="The program of the gradients as well.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write all of it here as well.")
    ] = None,
) -> None:  # fmt: skip
    """Show a program, the IR after each pass and what it saved, the steps, and the kernels.

    Kernels are named as the modules that are launched: the name ends with the hash of the text.
    """
    output.check_choice("--types", types, _TYPES)
    output.check_choice("--options", options, _OPTIONS)
    output.check_choice("--target", target, _TARGETS)
    output.check_choice("--dtype", dtype, _DTYPES)
    sections = SECTIONS if section is None else tuple(section.split(","))
    for name in sections:
        output.check_choice("--section", name, SECTIONS)
    if json_file is not None:
        output.check_writable("--json", json_file.parent)
        if json_file.is_dir():
            output.fail(f"--json: {json_file} is a folder; give a file's name")
    from gnn_backend.cli import emit_input, emit_text

    found = emit_input.emission(
        model, graph, types, (in_dim, out_dim, heads), options, target, dtype, backward
    )
    emit_text.show(found, sections)
    if json_file is not None:
        json_file.write_text(emit_text.as_json(found), encoding="utf-8")
        output.note(f"all of it in {json_file}")

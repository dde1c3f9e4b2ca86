"""``demo``: the example scripts, stock and accelerated, in one table and one picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_backend.cli import output

if TYPE_CHECKING:
    from gnn_backend.demo.results import Results

_CHECKOUT = Path(__file__).resolve().parents[2]
_NARROWEST = 132


def demo(
    out: Annotated[Path, typer.Option(help="Folder for demo.png and demo.json.")] = Path("out"),
    examples: Annotated[
        Path, typer.Option(help="Folder with the example scripts and their data.")
    ] = _CHECKOUT / "examples",
    cora_epochs: Annotated[int, typer.Option(min=1, help="Epochs of the DGL script.")] = 100,
    tolokers_epochs: Annotated[int, typer.Option(min=1, help="Epochs of the PyG script.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of both runs of a script.")] = 0,
    device: Annotated[
        str | None,
        typer.Option(help="Where the scripts train; default: cuda if there is one."),
    ] = None,
    layers: Annotated[
        bool, typer.Option(help="Also measure GATv2Conv(128, 64, 2 heads) on Tolokers on the CPU.")
    ] = True,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Train the two example scripts stock and accelerated, and compare.

    Each run is a process of its own. GATv2 in DGL (on Cora) and in PyG (on Tolokers) trains on the
    GPU if there is one; stock DGL, which has no GPU, on the CPU.
    """
    if not (examples / "data").is_dir():
        output.fail(f"--examples: no example scripts in {examples}; give a checkout's examples/")
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        output.fail(f"--device: got {device!r}, expected cpu, cuda or cuda:N")
    output.check_writable("--out", out)
    from gnn_backend.config import get_config

    get_config()  # a wrong variable is an error here already, not of the first run
    from gnn_backend.demo import chart, runs
    from gnn_backend.demo.results import table

    settings = runs.Settings(examples, cora_epochs, tolokers_epochs, seed, device, layers)
    results = runs.run(settings, output.note)
    chart.save(results, out / "demo.png")
    _save_json(results, out / "demo.json")
    if json_:
        output.print_json(results.to_dict())
        return
    from rich.console import Console

    console = Console()
    if console.width < _NARROWEST and not console.is_terminal:
        console = Console(width=_NARROWEST)
    console.print(table(results))
    console.print(f"chart: {out / 'demo.png'}   figures: {out / 'demo.json'}", highlight=False)


def _save_json(results: Results, path: Path) -> None:
    import json

    path.write_text(json.dumps(results.to_dict(), indent=2) + "\n", encoding="utf-8")

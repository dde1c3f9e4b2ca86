"""``bench fit`` and ``bench regret``: constants of the choice of paths, and what choosing costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_backend.cli import output
from gnn_backend.cli.results import read_results

if TYPE_CHECKING:
    from gnn_backend.bench.regret import Measured

_Files = Annotated[
    list[Path], typer.Argument(metavar="JSON...", help="Results of `bench spmm --paths`.")
]


def fit(
    files: _Files,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: the file that ships with the package."),
    ] = None,
) -> None:
    """Fit the constants that paths and task lengths are chosen by to measured times."""
    from gnn_backend.bench import regret as judging
    from gnn_backend.runtime.sparse import model

    documents, passes = _read(files)
    device = (documents[0]["device"] or {}).get("name", "unknown device")
    names = ", ".join(file.name for file in files)
    constants = judging.fit(passes, f"{names}: {device}, {documents[0]['date'][:10]}")
    target = model.FITTED if out is None else out
    output.check_writable("--out", target.parent)
    target.write_text(_shown(constants), encoding="utf-8")
    output.note(f"constants in {target}")
    _print(judging.judge(passes, constants), "fitted to these graphs")
    _print(judging.held_out(passes), "each graph by constants fitted to the others")


def regret(
    files: _Files,
    markdown: Annotated[bool, typer.Option(help="Tables for a document, on stdout.")] = False,
) -> None:
    """Time lost against the best measured choice, over all measured graphs: median and worst."""
    from gnn_backend.bench import path_tables
    from gnn_backend.bench import regret as judging
    from gnn_backend.runtime.sparse import model

    _, passes = _read(files)
    parts = {
        "by the constants that are shipped": judging.judge(passes, model.constants()),
        "each graph by constants fitted to the others": judging.held_out(passes),
        "rows always, at the default task length": judging.judge(passes, judging.UNFITTED),
    }
    for title, regrets in parts.items():
        if not regrets:  # a single graph leaves no others
            continue
        if markdown:
            typer.echo(f"Regret {title}:\n\n{path_tables.markdown(regrets)}")
        else:
            _print(regrets, title)


def _read(files: list[Path]) -> tuple[list[dict[str, Any]], list[Measured]]:
    from gnn_backend.bench import regret as judging

    documents = [read_results(file, ("paths",)) for file in files]
    try:
        passes = judging.measured(documents)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        output.fail(f"incomplete or damaged results of `bench spmm --paths` ({what})")
    if not passes:
        output.fail("no graph was measured in these results; run `bench spmm --paths` on one")
    return documents, passes


def _print(regrets: list[Any], title: str) -> None:
    from gnn_backend.bench.path_tables import regret_table

    if regrets:
        output.console().print(regret_table(f"Regret {title}", regrets))


def _shown(constants: dict[str, Any]) -> str:
    """JSON with a line for each list of numbers."""
    lines = ["{", f'  "source": {json.dumps(constants["source"])},']
    chunks = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in constants["chunks"].items()]
    lines += ['  "chunks": {', ",\n".join(chunks), "  },", '  "paths": {']
    paths = []
    for kind, fitted in constants["paths"].items():
        inner = ",\n".join(f"      {json.dumps(p)}: {json.dumps(c)}" for p, c in fitted.items())
        paths.append(f"    {json.dumps(kind)}: {{\n{inner}\n    }}")
    return "\n".join([*lines, ",\n".join(paths), "  }", "}"]) + "\n"

"""``cache``: where compiled kernels are kept, and how to be rid of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from gnn_backend.cli import output

_ACTIONS = ("info", "clear")


def cache(
    action: Annotated[str, typer.Argument(help="info or clear.")] = "info",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Show the cache of compiled kernels, or clear it (they are compiled again when needed)."""
    output.check_choice("ACTION", action, _ACTIONS)
    from gnn_backend.cli.doctor import cache_report

    report = cache_report()
    if action == "clear":
        removed = report["files"]
        _clear(Path(report["path"]))
        report = {**cache_report(), "removed": removed}
    if as_json:
        output.print_json(report)
        return
    print(f"{report['path']}: {report['files']} files, {output.bytes_text(report['bytes'])}")
    if "removed" in report:
        print(f"{report['removed']} files removed")


def _clear(folder: Path) -> None:
    """Remove what this package put into the cache directory, and nothing else there."""
    from gnn_backend.runtime.cache import PARTS

    for part in PARTS:
        if (folder / part).is_dir():
            try:
                shutil.rmtree(folder / part)
            except OSError as error:
                output.fail(f"cannot clear {folder / part}: {error}", output.CHECK_FAILED)

"""How commands speak: JSON on standard output alone, everything for people through rich."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

#: Exit codes of every command besides 0.
CHECK_FAILED = 1
BAD_USAGE = 2
_WIDTH = 120


def print_json(document: Any) -> None:
    """Write one JSON document, and nothing else, to standard output."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    sys.stdout.flush()


def console(stderr: bool = False) -> Console:
    """Where tables go; wide enough for them where no terminal sets a width."""
    from rich.console import Console

    made = Console(stderr=stderr)
    return made if made.is_terminal else Console(stderr=stderr, width=max(made.width, _WIDTH))


def note(message: str) -> None:
    """Progress and remarks, on standard error so that they never mix with a result."""
    console(stderr=True).print(message, highlight=False, markup=False, soft_wrap=True)


def fail(message: str, code: int = BAD_USAGE) -> NoReturn:
    """End the command with an error message on standard error."""
    note(f"error: {message}")
    raise SystemExit(code)


def check_choice(option: str, got: str, choices: Sequence[str]) -> None:
    """End the command unless the value of `option` is one of `choices`."""
    if got not in choices:
        fail(f"{option}: got {got!r}, expected one of {', '.join(choices)}")


def check_writable(option: str, folder: Path) -> None:
    """End the command unless files can be written to `folder`, which is made if needed.

    Asked before the work, so that no measurement is lost for want of a place.
    """
    from gnn_backend.runtime.cache import writing_problem

    if (problem := writing_problem(folder)) is not None:
        fail(f"{option}: cannot write to {folder} ({problem}); give a folder that you own")


def bytes_text(count: int | float | None) -> str:
    """Byte count for people: ``3.2 GiB``; ``-`` for None."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"

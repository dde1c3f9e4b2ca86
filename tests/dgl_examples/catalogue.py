"""The list of examples: which scripts, on which data, and how they are compared."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tests.dgl_suite.expected import parse

STEPS = 20


@dataclasses.dataclass(frozen=True)
class Example:
    """One script of ``examples/pytorch``.

    Attributes
    ----------
    id : str
    path : str
        Relative to ``examples/pytorch``.
    what : str
        What it shows.
    data : tuple of str
        ``module:attribute`` of what is replaced, see :mod:`tests.dgl_examples.datasets`.
    packages : tuple of str
        Packages to replace where they are not installed, or which only load data, see
        :mod:`tests.dgl_examples.packages`.
    arguments, cuda : tuple of str
        Command line, and what is added to it where the script is to run on CUDA.
    names_cuda : bool
        The script takes CUDA without asking; where there is none, it is moved to the CPU.
    dropout : bool
        Whether the script's dropout is left on.
    accuracy : str
        Regular expression with one group, a number, for what it prints.
    last : int
        The accuracy is the mean of so many of the last matches.
    steps : int
        Losses to compare from the start.
    sampled : bool
        Neighbours are drawn at random, on CUDA others than on the CPU.
    loss_tolerance, accuracy_tolerance : float
        Largest relative difference of a loss (of the mean of the last quarter if ``sampled``), and
        largest difference of the accuracy.
    """

    id: str
    path: str
    what: str
    accuracy: str
    data: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    names_cuda: bool = False
    dropout: bool = True
    last: int = 1
    steps: int = STEPS
    sampled: bool = False
    loss_tolerance: float = 1e-3
    accuracy_tolerance: float = 0.02


_TYPES = {field.name: str(field.type) for field in dataclasses.fields(Example)}


def read(path: Path) -> tuple[Example, ...]:
    """Read the list.

    Raises
    ------
    ValueError
        Naming an entry with an unknown or missing key, or an id that is there twice.
    """
    made: dict[str, Example] = {}
    for row in parse(path.read_text())["examples"]:
        name = row.get("id", "an entry without id")
        if unknown := set(row) - set(_TYPES):
            got = ", ".join(sorted(unknown))
            raise ValueError(f"{path.name}: {name}: unknown keys; got {got}, expected some of "
                             f"{', '.join(_TYPES)}")  # fmt: skip
        if missing := {"id", "path", "what", "accuracy"} - set(row):
            raise ValueError(f"{path.name}: {name}: missing keys; got {', '.join(row)}, "
                             f"expected also {', '.join(sorted(missing))}")  # fmt: skip
        if name in made:
            raise ValueError(f"{path.name}: {name}: the id is there twice")
        made[name] = Example(**{key: _value(key, value) for key, value in row.items()})
    return tuple(made.values())


def _value(key: str, value: Any) -> Any:
    kind = _TYPES[key]
    if kind.startswith("tuple"):
        return tuple(value)
    return {"int": int, "float": float}[kind](value) if kind in ("int", "float") else value

"""Modules of ours under the name of a package that cannot be imported, where the user asked for it.

They are put into ``sys.modules`` and taken out again; whoever imported them in between keeps them.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from gnn_backend.errors import invalid

MARKER = "__gnn_backend__"
"""Attribute, true, of the modules that stand in."""

#: Package -> our module whose ``modules()`` gives those to stand in, by name.
_MAKERS = {"torch_scatter": "gnn_backend.adapters.torch_scatter.provide"}
_ABSENT = object()


@dataclasses.dataclass
class _StandIn:
    """Our modules for one package, and what their names held before."""

    modules: dict[str, ModuleType]
    reason: str
    replaced: dict[str, Any] | None = None
    announced: bool = False


_known: dict[str, _StandIn] = {}


def prepare(names: str | Iterable[str] | None) -> frozenset[str]:
    """Make the modules of those packages that cannot be imported; nothing is put in place yet.

    Parameters
    ----------
    names : str or iterable of str, optional

    Returns
    -------
    frozenset of str
        The packages to stand in for.

    Raises
    ------
    InvalidArgument
        There is nothing to stand in for a package.
    """
    wanted = [names] if isinstance(names, str) else list(names or ())
    for name in wanted:
        if name not in _MAKERS:
            raise invalid("provide", "nothing stands in for it", repr(name), ", ".join(_MAKERS))
    return frozenset(name for name in wanted if _is_missing(name))


def _is_missing(name: str) -> bool:
    if getattr(sys.modules.get(name), MARKER, False):
        return True
    try:
        importlib.import_module(name)
    except Exception as error:  # a binary for another version of torch raises anything
        first = [*str(error).strip().splitlines(), ""][0]
        if name not in _known:
            _known[name] = _StandIn(importlib.import_module(_MAKERS[name]).modules(), "")
        _known[name].reason = f"{type(error).__name__}: {first}"
        return True
    return False


def stand_in(names: frozenset[str]) -> list[str]:
    """Put in place the modules for exactly these packages; return what to tell the user, once.

    Imports nothing. Modules that other code has replaced since are left alone.
    """
    said = []
    for name, ours in _known.items():
        if name in names and ours.replaced is None:
            ours.replaced = {n: sys.modules.get(n, _ABSENT) for n in ours.modules}
            sys.modules.update(ours.modules)
            if not ours.announced:
                said.append(f"gnn_backend stands in for {name} ({ours.reason}).{_late()}")
                ours.announced = True
        elif name not in names and ours.replaced is not None:
            for module, before in ours.replaced.items():
                if sys.modules.get(module) is not ours.modules[module]:
                    continue
                if before is _ABSENT:
                    del sys.modules[module]
                else:
                    sys.modules[module] = before
            ours.replaced = None
    return said


def _late() -> str:
    if "torch_geometric" not in sys.modules:
        return ""
    return " PyG was imported before and will not use it; call enable() first."

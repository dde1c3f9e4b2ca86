"""Modules with the names and contents of torch_scatter, made of our functions."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gnn_backend.adapters import torch_scatter as ours
from gnn_backend.adapters.torch_scatter import scripted
from gnn_backend.adapters.torch_scatter.place import broadcast, dimension
from gnn_backend.standins import MARKER

VERSION = "2.1.2+gnn_backend"
"""The version of torch_scatter whose functions these are."""

PACKAGE = "torch_scatter"
SCATTER = ("sum", "add", "mul", "mean", "min", "max")
SEGMENT = ("sum", "add", "mean", "min", "max")
NAMES = {
    "scatter": ("scatter", *(f"scatter_{op}" for op in SCATTER)),
    "segment_csr": ("segment_csr", "gather_csr", *(f"segment_{op}_csr" for op in SEGMENT)),
    "segment_coo": ("segment_coo", "gather_coo", *(f"segment_{op}_coo" for op in SEGMENT)),
    "composite": ("scatter_std", "scatter_logsumexp", "scatter_softmax", "scatter_log_softmax"),
}
"""Submodule -> functions in it."""


def modules() -> dict[str, ModuleType]:
    """The package and its submodules, by their full names."""
    functions = {name: _documented(name) for names in NAMES.values() for name in names}
    package = _module(PACKAGE, {"__version__": VERSION, "__path__": [], **functions})
    package.__all__ = [*functions, "__version__"]  # type: ignore[attr-defined]
    made = {PACKAGE: package}
    for name, names in NAMES.items():
        made[f"{PACKAGE}.{name}"] = _module(
            f"{PACKAGE}.{name}", {function: functions[function] for function in names}
        )
    made[f"{PACKAGE}.utils"] = _module(f"{PACKAGE}.utils", {"broadcast": _broadcast})
    for name in ("composite", "utils"):  # the other names are functions
        setattr(package, name, made[f"{PACKAGE}.{name}"])
    return made


def _documented(name: str) -> Any:
    function = getattr(scripted, name)
    function.__doc__ = getattr(ours, name).__doc__
    return function


def _module(name: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(name, "Stands in for a module of torch_scatter; made by gnn_backend.")
    package = name == PACKAGE
    module.__spec__ = ModuleSpec(name, None, origin="gnn_backend", is_package=package)
    module.__package__ = PACKAGE
    vars(module).update(contents, **{MARKER: True})
    return module


def _broadcast(src: Any, other: Any, dim: int) -> Any:
    """Expand an index to the shape of another tensor, along a dimension."""
    return broadcast(src, other, dimension(other, dim))

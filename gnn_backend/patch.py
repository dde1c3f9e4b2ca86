"""What the registry of patches holds: patches, hosts, what is switched on, what is reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

MODES = ("auto", "strict", "verify")


@dataclasses.dataclass(frozen=True)
class Patch:
    """One replaced attribute of a host.

    Attributes
    ----------
    host : str
        For example ``"pyg"``.
    module : str
        The module that defines the attribute, ``"torch_geometric.nn.conv.gatv2_conv"``.
    attribute : str
        Qualified name inside it: ``"GATv2Conv.forward"`` or ``"gspmm"``.
    layer : str
        The name that ``include`` and ``exclude`` know it by: ``"GATv2Conv"``.
    replacement : callable
        Takes the original function and returns the function to put in its place; usually a
        :class:`gnn_backend.dispatch.Dispatcher`.
    also : tuple of str
        Further places that hold the same object, as ``"module:attribute"``. Module-level names
        that merely re-export a function are found without being listed.
    when : callable, optional
        Asked once ``module`` is imported, without arguments; must import nothing. A text that is
        not empty is the reason why this place is left alone.
    shared : bool
        What several layers of the host rest on: chosen with any of them, unless excluded by name.
    """

    host: str
    module: str
    attribute: str
    layer: str
    replacement: Callable[[Any], Any]
    also: tuple[str, ...] = ()
    when: Callable[[], str] | None = None
    shared: bool = False

    @property
    def symbol(self) -> str:
        """``host.layer``, the name in profiles and messages."""
        return f"{self.host}.{self.layer}"

    @property
    def targets(self) -> list[tuple[str, str]]:
        """All (module, attribute) pairs to replace."""
        further = [tuple(place.split(":", 1)) for place in self.also]
        return [(self.module, self.attribute), *further]  # type: ignore[list-item]


@dataclasses.dataclass(frozen=True)
class Host:
    """A framework: its name here, its package, and the module that lists its patches."""

    name: str
    package: str
    patches: str


@dataclasses.dataclass(frozen=True)
class State:
    """What is switched on: the mode, and the symbols that it holds for."""

    mode: str
    symbols: frozenset[str]


@dataclasses.dataclass(frozen=True)
class PatchInfo:
    """One line of :func:`gnn_backend.patches`."""

    host: str
    symbol: str
    target: str
    active: bool
    replaced_by: str | None
    note: str

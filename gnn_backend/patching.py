"""The one registry of what is patched: (host symbol, replacement, saved original, conditions).

Adapters describe their patches declaratively, in ``gnn_backend.adapters.<host>.patches.PATCHES``,
without importing the host. :meth:`Registry.switch` applies them to host modules that are already
imported; an import hook applies them to those imported later. Undoing puts the very same objects
back: what was inherited is inherited again, a ``staticmethod`` is the same ``staticmethod``.

The state is process-wide, guarded by one lock. No module is ever imported while it is held, for
the import system has locks of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import itertools
import logging
import os
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from gnn_backend.bindings import STOCK, Binding, rename_everywhere, stock
from gnn_backend.errors import invalid
from gnn_backend.import_hook import ImportHook
from gnn_backend.patch import MODES, Host, Patch, PatchInfo, State

log = logging.getLogger(__name__)

__all__ = [
    "MODES",
    "STOCK",
    "Host",
    "Patch",
    "PatchInfo",
    "Registry",
    "State",
    "registry",
    "stock",
]


@dataclasses.dataclass
class _Frame:
    """A state that was set, by whom, and when; the most recent one holds."""

    state: State | None
    thread: int
    order: int


class Registry:
    """Known hosts, their patches, and which of them are applied."""

    def __init__(self, hosts: Iterable[Host] = ()) -> None:
        self.state: State | None = None
        """The state in force; replaced as a whole, so it can be read without the lock."""
        self.stock_only = False
        """Whether a :meth:`scope` of None is in force: then nothing at all is accelerated."""
        self._hosts = {host.name: host for host in hosts}
        self._patches: dict[str, list[Patch]] = {}
        self._bindings: dict[tuple[Patch, str, str], list[Binding]] = {}
        self._replacements: dict[tuple[Patch, int], Any] = {}
        self._originals: dict[int, Any] = {}  # by the id of their replacement; keeps both alive
        self._missing: dict[tuple[Patch, str, str], str] = {}
        self._unsaid: list[str] = []  # warnings, given once the lock is free
        self._lock = lock = threading.RLock()
        if hasattr(os, "register_at_fork"):  # else a child could inherit the lock as taken
            os.register_at_fork(
                before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
            )
        self._order = itertools.count()
        self._base = _Frame(None, 0, next(self._order))
        self._frames: list[_Frame] = []
        self._hook = ImportHook(self._imported)

    # -- what is known ---------------------------------------------------------------------

    def register_host(self, host: Host) -> None:
        """Make a further host known; its patches are read when they are first needed."""
        with self._lock:
            self._hosts[host.name] = host

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the known hosts."""
        return tuple(sorted(self._hosts))

    def host_of(self, module: str) -> str | None:
        """Return the name of the host whose package holds `module`."""
        package = module.partition(".")[0]
        return next((h.name for h in self._hosts.values() if h.package == package), None)

    def known(self) -> list[Patch]:
        """Return all patches of all known hosts, reading their lists at the first use."""
        for host in list(self._hosts.values()):
            if host.name not in self._patches:
                patches = list(importlib.import_module(host.patches).PATCHES)
                self._patches.setdefault(host.name, patches)
        return [patch for name in self.hosts for patch in self._patches[name]]

    def _loaded(self) -> list[Patch]:
        return [p for patches in list(self._patches.values()) for p in patches]

    def select(
        self,
        hosts: str | Iterable[str] | None = None,
        include: str | Iterable[str] | None = None,
        exclude: str | Iterable[str] | None = None,
    ) -> frozenset[str]:
        """Return the symbols that the arguments of ``enable`` choose.

        Raises
        ------
        InvalidArgument
            If a host or a layer name is unknown; the message lists those that exist.
        """
        chosen = set(self.hosts) if hosts is None else _names("hosts", hosts)
        for host in chosen - set(self.hosts):
            raise invalid("hosts", "unknown host", repr(host), f"of {', '.join(self.hosts)}")
        patches = self.known()
        symbols = {p.symbol for p in patches if p.host in chosen}
        if include is not None:
            symbols &= _matching("include", include, patches)
            used = {symbol.partition(".")[0] for symbol in symbols}
            symbols |= {p.symbol for p in patches if p.shared and p.host in used}
        if exclude is not None:
            symbols -= _matching("exclude", exclude, patches)
        return frozenset(symbols)

    # -- switching -------------------------------------------------------------------------

    def switch(self, state: State | None) -> None:
        """Set the state: of this thread's innermost :meth:`scope`, or else of the process."""
        self._settle()
        with self._lock:
            mine = [f for f in self._frames if f.thread == threading.get_ident()]
            frame = mine[-1] if mine else self._base
            frame.state, frame.order = state, next(self._order)
            self._update()
        self._finish()

    @contextlib.contextmanager
    def scope(self, state: State | None) -> Iterator[None]:
        """Set the state inside a ``with`` block.

        On leaving it the most recent state still in force holds again: blocks of several threads
        may overlap in any way, and the last to leave finds what was there before the first.
        """
        self._settle()
        with self._lock:
            frame = _Frame(state, threading.get_ident(), next(self._order))
            self._frames.append(frame)
            self._update()
        self._finish()
        try:
            yield
        finally:
            with self._lock:
                self._frames = [f for f in self._frames if f is not frame]
                self._update()

    def _update(self) -> None:
        """Make hook and bindings agree with the most recent state. The lock is held."""
        frame = max([self._base, *self._frames], key=lambda frame: frame.order)
        self.state = frame.state
        self.stock_only = frame.state is None and frame is not self._base
        loaded = self._loaded()
        wanted = [p for p in loaded if self.state and p.symbol in self.state.symbols]
        modules = {module for patch in wanted for module, _ in patch.targets}
        self._hook.watch(modules | {self._hosts[p.host].package for p in wanted})
        chosen = set(wanted)
        self._undo([p for p in loaded if p not in chosen])
        self._apply(wanted)

    def _apply(self, patches: list[Patch]) -> None:
        renamed: dict[int, tuple[Any, Any]] = {}
        for patch in patches:
            for module, attribute in patch.targets:
                binding = self._bind(patch, module, attribute)
                if binding is not None and isinstance(binding.owner, types.ModuleType):
                    renamed[id(binding.original)] = (binding.original, binding.replacement)
        rename_everywhere(renamed)

    def _bind(self, patch: Patch, module: str, attribute: str) -> Binding | None:
        """Put one replacement in place, unless it is there or its module is not ready."""
        key = (patch, module, attribute)
        if module not in sys.modules:
            return None
        *path, name = attribute.split(".")
        owner: Any = sys.modules[module]
        try:
            for part in path:
                owner = getattr(owner, part)
            raw = inspect.getattr_static(owner, name)
        except AttributeError:
            self._note_missing(key, module, attribute)
            return None
        bindings = self._bindings.setdefault(key, [])
        if any(b.owner is owner for b in bindings):
            return None
        if patch.when is not None and (reason := patch.when()):
            self._missing[key] = reason
            return None
        raw = self._pristine(raw)
        binding = Binding(owner, name, raw, name not in vars(owner), self._replace(patch, raw))
        setattr(owner, name, binding.replacement)
        bindings.append(binding)
        self._missing.pop(key, None)
        return binding

    def _pristine(self, raw: Any) -> Any:
        """Return what the host would hold, had it not imported a replacement."""
        if isinstance(raw, (staticmethod, classmethod)) and id(raw.__func__) in self._originals:
            return type(raw)(self._originals[id(raw.__func__)])
        return self._originals.get(id(raw), raw)

    def _replace(self, patch: Patch, raw: Any) -> Any:
        """Build the replacement of `raw` once, whatever the number of places that hold it."""
        key = (patch, id(raw))
        if key not in self._replacements:
            wrapper = type(raw) if isinstance(raw, (staticmethod, classmethod)) else None
            function = stock(raw.__func__ if wrapper else raw)
            new = patch.replacement(function)
            with contextlib.suppress(AttributeError):
                setattr(new, STOCK, function)
            self._replacements[key] = new = wrapper(new) if wrapper else new
            self._originals[id(new)] = raw
        return self._replacements[key]

    def _undo(self, patches: list[Patch]) -> None:
        renamed: dict[int, tuple[Any, Any]] = {}
        for patch in patches:
            for module, attribute in patch.targets:
                for binding in reversed(self._bindings.pop((patch, module, attribute), [])):
                    binding.undo()
                    if isinstance(binding.owner, types.ModuleType):
                        renamed[id(binding.replacement)] = (binding.replacement, binding.original)
        rename_everywhere(renamed)

    def _note_missing(self, key: tuple[Patch, str, str], module: str, attribute: str) -> None:
        if not _initializing(module) and key not in self._missing:
            note = f"{module} has no {attribute}; this version of the host is unknown"
            self._missing[key] = note
            self._unsaid.append(f"{key[0].symbol} is not accelerated: {note}")

    # -- imports ---------------------------------------------------------------------------

    def _imported(self, module: str) -> None:
        """Apply what waits for `module`; called by the import hook once its body has run."""
        with self._lock:
            if self.state is None:
                return
            self._update()
        self._finish(module)

    def _settle(self) -> None:
        """Wait for host modules that another thread is importing at this moment."""
        for patch in self._loaded():
            for module, _ in patch.targets:
                if _initializing(module):
                    with contextlib.suppress(Exception):  # the importing thread reports it
                        importlib.import_module(module)

    def _finish(self, imported: str = "") -> None:
        """Do what must not be done under the lock: warn, and import what replacements name.

        That imports the host in turn, so it waits for the host's whole body. A package that was
        ``imported`` this moment is complete, though Python still counts it as initializing.
        """
        while self._unsaid:
            warnings.warn(self._unsaid.pop(), stacklevel=4)
        state = self.state
        for patch in self._loaded() if state else ():
            package = self._hosts[patch.host].package
            resolve = getattr(patch.replacement, "resolve", None)
            complete = package == imported or not _initializing(package)
            if resolve and package in sys.modules and complete:
                resolve()

    # -- reporting -------------------------------------------------------------------------

    def describe(self) -> list[PatchInfo]:
        """Return one entry for each place that is or could be patched."""
        rows = []
        patches = self.known()
        with self._lock:
            for patch in patches:
                for module, attribute in patch.targets:
                    key = (patch, module, attribute)
                    bindings = self._bindings.get(key)
                    new = bindings[-1].replacement if bindings else None
                    note = self._missing.get(key) or ("" if bindings else self._why_not(patch))
                    rows.append(
                        PatchInfo(patch.host, patch.symbol, f"{module}.{attribute}",
                                  bool(bindings), _where(patch) if new else None, note)
                    )  # fmt: skip
        return rows

    def _why_not(self, patch: Patch) -> str:
        if self.state is None:
            return "disabled"
        if patch.symbol not in self.state.symbols:
            return "excluded"
        package = self._hosts[patch.host].package
        if package in sys.modules or importlib.util.find_spec(package) is not None:
            return "not imported yet"
        return "not installed"


def _names(argument: str, value: str | Iterable[str]) -> set[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Iterable) or any(not isinstance(name, str) for name in names):
        raise invalid(argument, "no names", repr(value), "a name, or several in a list")
    return set(names)


def _matching(argument: str, names: str | Iterable[str], patches: list[Patch]) -> set[str]:
    by_name: dict[str, set[str]] = {}
    for patch in patches:
        for name in (patch.layer, patch.symbol):
            by_name.setdefault(name, set()).add(patch.symbol)
    chosen = _names(argument, names)
    for name in sorted(chosen - set(by_name)):
        known = ", ".join(sorted({p.symbol for p in patches})) or "no layer is known"
        close = difflib.get_close_matches(name, by_name, n=1)
        fix = f"Did you mean {close[0]!r}?" if close else ""
        raise invalid(argument, "unknown layer", repr(name), f"names among {known}", fix)
    return set().union(*(by_name[name] for name in chosen))


def _initializing(module: str) -> bool:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _where(patch: Patch) -> str:
    fast = getattr(patch.replacement, "fast", patch.replacement)
    if isinstance(fast, str):
        return fast.replace(":", ".")
    return f"{fast.__module__}.{getattr(fast, '__qualname__', type(fast).__qualname__)}"


registry = Registry(
    [
        Host("dgl", "dgl", "gnn_backend.adapters.dgl.patches"),
        Host("pyg", "torch_geometric", "gnn_backend.adapters.pyg.patches"),
    ]
)
"""The registry of this process."""

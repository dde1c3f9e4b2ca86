"""A meta-path finder that calls back once the body of a watched module has run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportHook(MetaPathFinder):
    """Calls ``callback(name)`` after the import of each watched module.

    The other finders do the finding. The loader is wrapped for the moment of the import only, so
    that ``module.__loader__`` and ``module.__spec__.loader`` are those of an unwatched import.
    """

    def __init__(self, callback: Callable[[str], None]) -> None:
        self._callback = callback
        self._watched: frozenset[str] = frozenset()
        self._searching = threading.local()

    def watch(self, modules: Iterable[str]) -> None:
        """Watch exactly these modules; with none the finder leaves ``sys.meta_path``."""
        self._watched = frozenset(modules)
        if self._watched and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        elif not self._watched and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find `fullname` with the other finders and wrap its loader."""
        names = self._searching.__dict__.setdefault("names", set())
        if fullname not in self._watched or fullname in names:
            return None
        names.add(fullname)  # another hook of this kind would ask this one in turn
        try:
            spec = _find_elsewhere(self, fullname, path, target)
        finally:
            names.discard(fullname)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _CallbackLoader(spec.loader, self._callback)
        return spec


def _find_elsewhere(
    hook: ImportHook, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is not hook:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
    return None


class _CallbackLoader(Loader):
    def __init__(self, loader: Any, callback: Callable[[str], None]) -> None:
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback(module.__name__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

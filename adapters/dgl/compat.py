"""Lets ``import dgl`` load on PyTorch and NumPy versions that its wheel was not built for.

DGL 2.1.0 imports ``dgl.graphbolt`` while it loads. That part needs ``torchdata.datapipes`` (gone
from current torchdata) and a binary named after the exact PyTorch version, so on any other
PyTorch the whole of DGL fails to import although nothing else in it depends on either. A few
data set readers want pandas in the same way, and ``dgl.sparse`` has a version-exact binary too.

``install()`` puts an import hook in place that touches nothing until DGL is imported, and then
replaces only what cannot load:

- ``dgl.graphbolt`` and the modules under ``dgl.data``: a stand-in whose names can be imported,
  and which raises a clear ``ImportError`` when one of them is used;
- ``dgl.sparse``: a clear ``ImportError`` at import, since only user code imports it, and code
  that tests for it should see that it is absent.

If ``DGLBACKEND`` is unset and there is no ``config.json``, the backend is set to PyTorch for
the process, so that DGL neither prompts nor writes a file under the home directory.

The hook must be installed before DGL is imported: ``import gnn_backend`` first. Where ``import
dgl`` works without help, the order does not matter.
"""

from __future__ import annotations

import importlib.machinery
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

TESTED_VERSIONS = ("2.1.0",)
"""DGL versions that this package's own tests run on."""

# Module -> (folder and base name of its binary, what works instead).
_BINARIES = {
    "dgl.graphbolt": ("graphbolt", "graphbolt"),
    "dgl.sparse": ("dgl_sparse", "dgl_sparse"),
}
_INSTEAD = {
    "dgl.graphbolt": "Sample with dgl.dataloading (NeighborSampler, DataLoader), which does not "
    "need it",
    "dgl.sparse": "Use message passing on DGLGraph, dgl.ops or torch.sparse, which do not need it",
}
_missing: dict[str, str] = {}


def install() -> None:
    """Install the import hook, once; nothing happens until DGL is imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def missing() -> dict[str, str]:
    """Parts of DGL found unable to load in this process: module name -> reason."""
    return dict(_missing)


def version_problem(version: str) -> str | None:
    """Say what is wrong with a DGL version, or None for one that is tested."""
    if version in TESTED_VERSIONS:
        return None
    return (
        f"dgl {version} is not among the versions tested with gnn_backend "
        f"({', '.join(TESTED_VERSIONS)}); layers that differ from those fall back or may fail. "
        f"Install dgl=={TESTED_VERSIONS[-1]}, or use gnn_backend.enable(mode='verify') to check "
        "every call against the stock layer."
    )


# ---------------------------------------------------------------------- import hook


class _Finder(MetaPathFinder):
    """Wraps the loaders of the few DGL modules that may fail; every other import is untouched."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "dgl" and not fullname.startswith("dgl."):
            return None
        parent = fullname.rpartition(".")[0]
        if parent in _missing:
            raise ImportError(_message(fullname, _missing[parent], parent), name=fullname)
        if not (fullname in ("dgl", *_BINARIES) or parent == "dgl.data"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Runs the real loader, and replaces the module if that fails."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:  # tools that read sources go through the real loader
            module.__spec__.loader = self.real
        module.__loader__ = self.real
        if module.__name__ == "dgl":
            _load_dgl(module, self.real)
        else:
            _load_optional(module, self.real)


def _load_dgl(module: ModuleType, loader: Loader) -> None:
    default_dir = os.environ.get("DGLDEFAULTDIR", str(Path.home() / ".dgl"))
    if "DGLBACKEND" not in os.environ and not Path(default_dir, "config.json").exists():
        os.environ["DGLBACKEND"] = "pytorch"
    loader.exec_module(module)
    problem = version_problem(str(getattr(module, "__version__", "of unknown version")))
    if problem is not None:
        warnings.warn(problem, stacklevel=2)


def _load_optional(module: ModuleType, loader: Loader) -> None:
    name = module.__name__
    cause: Exception | None = None
    reason = _absent_binary(name)
    if reason is None:
        try:
            loader.exec_module(module)
            return
        except Exception as error:  # whatever a half-supported binary or dependency raises
            cause, reason = error.with_traceback(None), _describe(error)
    for loaded in [m for m in sys.modules if m.startswith(f"{name}.")]:
        del sys.modules[loaded]
    _missing[name] = reason
    if name == "dgl.sparse":
        raise ImportError(_message(name, reason, name), name=name) from cause
    _stand_in(module, reason)


def _absent_binary(name: str) -> str | None:
    """Say which binary of ``name`` is not there for this PyTorch, or None."""
    if name not in _BINARIES:
        return None
    import torch
    from dgl._ffi import libinfo

    folder, base = _BINARIES[name]
    version = torch.__version__.split("+", maxsplit=1)[0]
    prefix, suffix = {"Windows": ("", ".dll"), "Darwin": ("lib", ".dylib")}.get(
        platform.system(), ("lib", ".so")
    )
    stem = f"{prefix}{base}_pytorch_"
    directory = Path(libinfo.find_lib_path()[0]).parent / folder
    if (directory / f"{stem}{version}{suffix}").exists():
        return None
    built = sorted(f.name[len(stem) : -len(suffix)] for f in directory.glob(f"{stem}*{suffix}"))
    return (
        f"this DGL ({libinfo.__version__}) has no {base} library for PyTorch {version}, "
        f"only for {', '.join(built) or 'no version at all'}"
    )


def _describe(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it needs the module {error.name!r}, which is not installed"
    return f"loading it failed with {type(error).__name__}: {error}"


# ---------------------------------------------------------------------- stand-ins


def _message(symbol: str, reason: str, module: str) -> str:
    instead = _INSTEAD.get(module, "Install what it needs, then restart Python")
    return f"{symbol} cannot be used: {reason}. {instead}; the rest of DGL works."


def _stand_in(module: ModuleType, reason: str) -> None:
    """Empty a half-executed module and let every public name in it raise on use."""
    for name in [n for n in vars(module) if not n.startswith("__")]:
        delattr(module, name)

    def lookup(name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return _Missing(f"{module.__name__}.{name}", reason, module.__name__)

    module.__dict__["__getattr__"] = lookup


class _Missing:
    """A name of a module that cannot load. Looking at it is free; using it raises ImportError."""

    _symbol: str
    _reason: str
    _module: str

    def __init__(self, symbol: str, reason: str, module: str) -> None:
        self.__dict__.update(_symbol=symbol, _reason=reason, _module=module)

    def _fail(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ImportError(_message(self._symbol, self._reason, self._module), name=self._module)

    __call__ = __iter__ = __len__ = __getitem__ = __setattr__ = _fail
    __enter__ = __mro_entries__ = __contains__ = _fail

    def __exit__(self, *args: Any) -> None:
        """Exists so that ``with`` reaches ``__enter__``, which raises."""

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._symbol}.{name}", self._reason, self._module)

    def __instancecheck__(self, instance: object) -> bool:
        return False  # no object of a class that does not exist

    def __repr__(self) -> str:
        return f"<{self._symbol}: cannot be used, {self._reason}>"

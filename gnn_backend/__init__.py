"""Fused, IO-aware kernels behind unchanged DGL and PyTorch Geometric code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gnn_backend.adapters.dgl import compat as _dgl_compat

if TYPE_CHECKING:
    from gnn_backend.api import (
        accelerate,
        compare,
        disable,
        disabled,
        enable,
        enabled,
        explain,
        is_enabled,
        patches,
        profile,
        warmup,
    )

__all__ = [
    "accelerate",
    "compare",
    "disable",
    "disabled",
    "enable",
    "enabled",
    "explain",
    "is_enabled",
    "patches",
    "profile",
    "warmup",
]


class _Package(ModuleType):
    """Imports public names, and submodules, when they are first asked for.

    torch takes seconds to import, which ``python -m gnn_backend --help`` need not wait for. A
    module ``__getattr__`` would not do: importing the submodule ``profile`` or ``compare`` binds
    its name here, which is the name of a public function.
    """

    def __getattr__(self, name: str) -> Any:
        if name in __all__:
            return self.__dict__.setdefault(name, getattr(_imported("api"), name))
        if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
            return _imported(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


def _imported(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


sys.modules[__name__].__class__ = _Package
_dgl_compat.install()  # so that `import dgl` loads on a PyTorch that its wheel does not know

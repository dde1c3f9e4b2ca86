"""What is patched in torch_scatter; read without importing it."""

from __future__ import annotations

import sys

from gnn_backend.adapters.torch_scatter.dispatch import ScatterDispatcher
from gnn_backend.adapters.torch_scatter.provide import NAMES, PACKAGE
from gnn_backend.patching import Patch
from gnn_backend.standins import MARKER

_ADAPTERS = "gnn_backend.adapters.torch_scatter"
_COMPOSITES = {
    "scatter_std": "std",
    "scatter_logsumexp": "logsumexp",
    "scatter_softmax": "softmax",
    "scatter_log_softmax": "softmax",
}


def _is_ours() -> str:
    """Why the modules that stand in for the package are left as they are."""
    return "stands in for it already" if hasattr(sys.modules.get(PACKAGE), MARKER) else ""


def _function(submodule: str, name: str) -> Patch:
    where = f"{PACKAGE}.{submodule}"
    if submodule == "composite":
        where = f"{where}.{_COMPOSITES[name]}"
    own = "segment" if submodule.startswith("segment") else submodule
    return Patch(
        PACKAGE,
        where,
        name,
        name,
        ScatterDispatcher(
            f"{PACKAGE}.{name}",
            eligible=f"{_ADAPTERS}.dispatch:eligible",
            fast=f"{_ADAPTERS}.{own}:{name}",
        ),
        when=_is_ours,
    )


PATCHES = [_function(submodule, name) for submodule, names in NAMES.items() for name in names]

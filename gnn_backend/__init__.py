"""Fused, IO-aware kernels behind unchanged DGL and PyTorch Geometric code."""

from gnn_backend.adapters.dgl import compat as _dgl_compat
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

_dgl_compat.install()  # so that `import dgl` loads on a PyTorch that its wheel does not know

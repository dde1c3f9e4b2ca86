"""Fused, IO-aware kernels behind unchanged DGL and PyTorch Geometric code."""

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
]

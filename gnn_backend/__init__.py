"""Fused, IO-aware kernels behind unchanged DGL and PyTorch Geometric code."""

from gnn_backend.api import disable, disabled, enable, enabled, is_enabled, patches
from gnn_backend.profile import profile

__all__ = ["disable", "disabled", "enable", "enabled", "is_enabled", "patches", "profile"]

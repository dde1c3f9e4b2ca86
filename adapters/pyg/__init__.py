"""PyTorch Geometric: fused layers and the cache of their graphs.

The layers here are PyG's own classes, accelerated without ``enable()``. They are loaded on first
use, so that this package imports without PyG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnn_backend.adapters.pyg.cache import cached_bytes, clear_cache

if TYPE_CHECKING:
    from gnn_backend.adapters.pyg.base import MessagePassing
    from gnn_backend.adapters.pyg.modules import (
        AGNNConv,
        GATConv,
        GATv2Conv,
        SuperGATConv,
        TransformerConv,
    )

__all__ = [
    "AGNNConv",
    "GATConv",
    "GATv2Conv",
    "MessagePassing",
    "SuperGATConv",
    "TransformerConv",
    "cached_bytes",
    "clear_cache",
]


def __getattr__(name: str) -> Any:
    if name == "MessagePassing":
        from gnn_backend.adapters.pyg import base

        return base.MessagePassing
    if name in __all__:
        from gnn_backend.adapters.pyg import modules

        return getattr(modules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

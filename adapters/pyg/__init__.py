"""PyTorch Geometric: fused layers and the cache of their graphs.

``GATv2Conv`` is PyG's own class, accelerated without ``enable()``. It is loaded on first use, so
that this package imports without PyG.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnn_backend.adapters.pyg.cache import cached_bytes, clear_cache

if TYPE_CHECKING:
    from gnn_backend.adapters.pyg.modules import GATv2Conv

__all__ = ["GATv2Conv", "cached_bytes", "clear_cache"]


def __getattr__(name: str) -> Any:
    if name == "GATv2Conv":
        from gnn_backend.adapters.pyg import modules

        return modules.GATv2Conv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

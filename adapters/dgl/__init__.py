"""DGL: fused layers, the cache of their graphs, and the shim that lets ``import dgl`` load.

``GATv2Conv`` is DGL's own class, accelerated without ``enable()``. It is loaded on first use, so
that this package imports without DGL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnn_backend.adapters.dgl.graph import cached_bytes, clear_cache, graph_of
    from gnn_backend.adapters.dgl.modules import GATv2Conv

__all__ = ["GATv2Conv", "cached_bytes", "clear_cache", "graph_of"]


def __getattr__(name: str) -> Any:
    if name == "GATv2Conv":
        from gnn_backend.adapters.dgl import modules

        return modules.GATv2Conv
    if name in __all__:
        from gnn_backend.adapters.dgl import graph

        return getattr(graph, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""DGL: fused layers, the cache of their graphs, and the shim that lets ``import dgl`` load.

The layers here are DGL's own classes, accelerated without ``enable()``. They are loaded on first
use, so that this package imports without DGL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnn_backend.adapters.dgl.graph import cached_bytes, clear_cache, graph_of
    from gnn_backend.adapters.dgl.modules import (
        AGNNConv,
        DotGatConv,
        EdgeGATConv,
        GATConv,
        GATv2Conv,
    )

_LAYERS = frozenset({"AGNNConv", "DotGatConv", "EdgeGATConv", "GATConv", "GATv2Conv"})
__all__ = [
    "AGNNConv",
    "DotGatConv",
    "EdgeGATConv",
    "GATConv",
    "GATv2Conv",
    "cached_bytes",
    "clear_cache",
    "graph_of",
]


def __getattr__(name: str) -> Any:
    if name in _LAYERS:
        from gnn_backend.adapters.dgl import modules

        return getattr(modules, name)
    if name in __all__:
        from gnn_backend.adapters.dgl import graph

        return getattr(graph, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

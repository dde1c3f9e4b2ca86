"""Operators with autograd over :class:`gnn_backend.graph.Graph`, one family a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnn_backend.ops.aggregation import aggregate
    from gnn_backend.ops.matmul import segment_matmul

__all__ = ["aggregate", "segment_matmul"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line's help must not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "segment_matmul":
        from gnn_backend.ops.matmul import segment_matmul

        return segment_matmul
    from gnn_backend.ops.aggregation import aggregate

    return aggregate

"""Operators with autograd over :class:`gnn_backend.graph.Graph`, one family a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnn_backend.ops.aggregation import aggregate

__all__ = ["aggregate"]


def __getattr__(name: str) -> Any:
    """Import on first use: the command line's help must not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gnn_backend.ops.aggregation import aggregate

    return aggregate

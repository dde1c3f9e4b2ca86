"""What runs DGL's sparse operators on resident graphs: kernels, and plain torch behind them.

Every operator is dispatched as a layer is: counted, compared in mode ``verify``, and run by the
reference, under a reason code, where there is no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnn_backend.dispatch import Dispatcher
from gnn_backend.ops import reference

_KERNELS = {
    "edge_softmax": "edge_softmax:edge_softmax",
    "edge_softmax_backward": "edge_softmax:edge_softmax_backward",
    "gather_mm": "segment_mm:gather_mm",
    "gather_mm_scatter": "segment_mm:gather_mm_scatter",
    "gsddmm": "edgewise:gsddmm",
    "gspmm": "spmm:gspmm",
    "scatter_add": "segment:scatter_add",
    "segment_mm": "segment_mm:segment_mm",
    "segment_mm_backward_weight": "segment_mm:segment_mm_backward_b",
    "segment_reduce": "segment:segment_reduce",
    "segment_reduce_backward": "segment:segment_reduce_backward",
}
"""Module and function in :mod:`gnn_backend.ops`, imported at the first call."""

PRODUCTS = frozenset(f"dgl.{name}" for name, at in _KERNELS.items() if at.startswith("segment_mm"))
"""Symbols of typed matrix products, which torch computes where there is no kernel."""


def _always(*args: Any, **kwargs: Any) -> None:
    """No reason against a kernel; it knows by itself what it does not take."""


def _operator(name: str, kernel: str) -> Callable[..., Any]:
    fast = f"gnn_backend.ops.{kernel}"
    dispatcher = Dispatcher(f"dgl.{name}", _always, fast, switch="dgl.residence")
    return dispatcher(getattr(reference, name))


OPERATORS: dict[str, Callable[..., Any]] = {
    name: _operator(name, kernel) for name, kernel in _KERNELS.items()
}
"""The function that each operator runs, by its name in :mod:`gnn_backend.ops.reference`.

All have the arguments and results of the reference, which is what runs where a kernel raises
:class:`gnn_backend.errors.Unsupported`. Calls are counted under ``dgl.`` and the name.
"""

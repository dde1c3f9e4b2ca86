"""Weighted messages of DGL graphs on the CPU: ``update_all(u_mul_e, ...)`` and ``u_mul_e_sum``.

DGL computes a message with an operand of its edge number by number, and its gradient as well, where
our kernels take a whole row. Messages without one it reads as fast as we do: they stay DGL's, and
so does what is too small for a call of ours to pay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.dgl.graph import graph_of, unsupported_reason
from gnn_backend.config import get_config
from gnn_backend.dispatch import Dispatcher, active_mode, bypassed
from gnn_backend.errors import Unsupported
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.runtime import launch

SYMBOL = "dgl.u_mul_e"
SWITCH = "dgl.residence"
#: How many numbers the messages must hold.
LEAST = 1 << 16
_REDUCERS = ("sum", "mean", "max", "min")
_DTYPES = (torch.float32, torch.float64)


def reduced(stock: Any, g: Any, op: str, reduce_op: str, u: Any, e: Any) -> Tensor | None:
    """What ``dgl.ops.gspmm`` gives where our kernels are the faster ones, else None."""
    if op != "mul" or reduce_op not in _REDUCERS or not _fit(g, u, e):
        return None
    if bypassed() or active_mode(SWITCH) is None or torch.compiler.is_compiling():
        return None
    out: Tensor = _dispatched(stock)(g, op, reduce_op, u, e)
    return out


def _fit(g: Any, u: Any, e: Any) -> bool:
    """Whether the operands are tables whose product is as wide as a source's row."""
    if type(u) is not Tensor or type(e) is not Tensor or u.dtype is not e.dtype:
        return False
    if not (u.is_cpu and e.is_cpu) or u.dtype not in _DTYPES or u.dim() < 2:
        return False
    if u.layout is not torch.strided or e.layout is not torch.strided:
        return False
    edges = int(g.num_edges())
    if (len(u), len(e)) != (g.num_src_nodes(), edges) or edges * u[0].numel() < LEAST:
        return False
    if torch.is_autocast_enabled() or get_config().cpu_target != "numba":
        return False
    if _by_row(u, e) is None or unsupported_reason(g) is not None:
        return False
    try:
        launch.aggregation_engine(u.device, u.dtype)
    except Unsupported:
        return False
    return True


def _by_row(u: Tensor, e: Tensor) -> Tensor | None:
    """The edges' operand without its trailing ones, or None if it broadcasts otherwise.

    DGL puts the dimensions that it lacks before its own.
    """
    tail, own = tuple(u.shape[1:]), tuple(e.shape[1:])
    if len(own) > len(tail):
        return None
    own = (1,) * (len(tail) - len(own)) + own
    kept = max((i + 1 for i, size in enumerate(own) if size != 1), default=0)
    return e.reshape(len(e), *own[:kept]) if own[:kept] == tail[:kept] else None


def _fast(g: Any, op: str, reduce_op: str, u: Tensor, e: Tensor) -> Tensor:
    out: Tensor = aggregate(
        graph_of(g), u, reduce_op, edge=_by_row(u, e), message="mul", ties="first", nan="skip"
    )
    return out


def _no_reason(*args: Any) -> None:
    """Calls that are left to DGL do not get here."""


@functools.cache
def _dispatched(stock: Any) -> Callable[..., Any]:
    return Dispatcher(SYMBOL, _no_reason, _fast, switch=SWITCH)(stock)

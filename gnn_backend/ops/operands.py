"""Checks of the sparse operators' arguments, and operands as the kernels read them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.ops.attention import kernel_ready
from gnn_backend.ops.broadcast import Pattern, Shape, offsets
from gnn_backend.runtime.sparse.spmm import Operand

MAX_ROW_BYTES = 1 << 32  # strides are 32-bit in the kernels
NODES_AND_EDGES = ("u", "v", "e")


def choice(argument: str, value: str, accepted: tuple[str, ...]) -> None:
    """Refuse a name that is not among the accepted ones."""
    if value not in accepted:
        raise invalid(argument, "unknown", repr(value), f"one of {', '.join(accepted)}")


def count_of(graph: Graph, target: str) -> int:
    """Rows of a table of sources (u), destinations (v) or edges (e)."""
    return {"u": graph.num_src, "v": graph.num_dst, "e": graph.num_edges}[target]


def check_table(name: str, table: Tensor | None, rows: int, device: torch.device) -> Tensor:
    """An operand that is needed: floating point, on the device, with so many rows."""
    if not isinstance(table, Tensor):
        raise invalid(name, "missing", table, "a tensor")
    if table.dim() < 1 or table.shape[0] != rows:
        raise invalid(name, "wrong shape", tuple(table.shape), f"[{rows}, ...]")
    if not table.is_floating_point():
        raise invalid(name, "wrong dtype", table.dtype, "a floating-point dtype")
    if table.device != device:
        raise invalid(name, "not on the graph's device", table.device, device)
    return table


def check_same_dtype(left: Tensor | None, right: Tensor | None, names: str) -> None:
    """Refuse two operands of different dtypes."""
    if left is not None and right is not None and left.dtype != right.dtype:
        raise invalid(names, "mixed dtypes", f"{left.dtype} and {right.dtype}", "one dtype",
                      "Convert one of them")  # fmt: skip


def trailing(table: Tensor | None) -> Shape | None:
    """The shape without its first dimension."""
    return None if table is None else tuple(table.shape[1:])


def as_operands(
    pattern: Pattern, left: Tensor | None, right: Tensor | None
) -> tuple[Operand, Operand]:
    """How the columns of both operands are found."""
    lhs, rhs = (
        Operand()
        if table is None
        else Operand(access, row_bytes(table), _offsets(pattern, table, access))
        for table, access in zip((left, right), pattern.accesses, strict=True)
    )
    for operand in (lhs, rhs):
        check_row_bytes(operand)
    return lhs, rhs


def row_bytes(table: Tensor) -> int:
    """Bytes of a row of a table without gaps."""
    return math.prod(table.shape[1:]) * table.element_size()


def ready(table: Tensor | None) -> Tensor | None:
    """The table as the kernels read it, if there is one."""
    return None if table is None else kernel_ready(table)


def check_row_bytes(operand: Operand) -> None:
    """Refuse rows that a 32-bit stride does not cross."""
    size = operand.row_bytes
    if size >= MAX_ROW_BYTES:
        raise invalid("operands", "rows too wide", f"{size} bytes", f"below {MAX_ROW_BYTES}")


def _offsets(pattern: Pattern, table: Tensor, access: str) -> Tensor | None:
    if access != "table":
        return None
    own = (1,) * (len(pattern.shape) - table.dim() + 1) + tuple(table.shape[1:])
    return offsets(own, pattern.shape, table.device)

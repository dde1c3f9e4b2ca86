"""Generalised SDDMM: a value on each edge, from its ends and its own, without autograd."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.ops.broadcast import Pattern, broadcast, offsets
from gnn_backend.ops.operands import (
    NODES_AND_EDGES,
    as_operands,
    check_row_bytes,
    check_same_dtype,
    check_table,
    choice,
    count_of,
    ready,
    row_bytes,
    trailing,
)
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.sparse.rows import rows_of
from gnn_backend.runtime.sparse.sddmm import Plan
from gnn_backend.runtime.sparse.spmm import Operand

OPERATORS = ("add", "sub", "mul", "div", "dot", "copy_lhs", "copy_rhs")


def gsddmm(
    graph: Graph,
    op: str,
    lhs: Tensor | None,
    rhs: Tensor | None,
    lhs_target: str = "u",
    rhs_target: str = "v",
) -> Tensor:
    r"""Generalised SDDMM, without autograd.

    .. math:: y_e = \mathrm{op}(x_{t(e)}, x'_{t'(e)})

    Parameters
    ----------
    graph : Graph
    op : {"add", "sub", "mul", "div", "dot", "copy_lhs", "copy_rhs"}
        ``dot`` sums products over the last dimension, which stays with size 1.
    lhs, rhs : Tensor [num_src | num_dst | num_edges, *]
        Trailing dimensions broadcast by NumPy's rules (for ``dot`` the last ones are equal).
        The one that ``op`` does not use is ignored.
    lhs_target, rhs_target : {"u", "v", "e"}
        Whose rows the operands are: sources, destinations or edges (in the caller's order).

    Returns
    -------
    Tensor [num_edges, *]
        In the caller's edge order, in the dtype of the operands; computed in float32, float64 in
        float64. Equal inputs give equal bits.

    Raises
    ------
    InvalidArgument
        Names, shapes, dtypes or devices do not fit.
    Unsupported
        No kernel for this device or dtype.
    """
    choice("op", op, OPERATORS)
    left, right = (
        _checked(graph, name, table, target) if used else None
        for name, table, target, used in (
            ("lhs", lhs, lhs_target, op != "copy_rhs"),
            ("rhs", rhs, rhs_target, op != "copy_lhs"),
        )
    )
    check_same_dtype(left, right, "lhs, rhs")
    first = left if left is not None else right
    assert first is not None
    engine = sparse_engine(first.device, first.dtype)
    targets = (lhs_target, rhs_target)
    key = ("sddmm", op, *targets, first.dtype, trailing(left), trailing(right))
    found = graph.plans.get(key)
    if found is None:
        found = graph.plans[key] = _plan(graph, op, left, right, targets)
    plan, shape = found
    if plan is None:
        return first.new_empty(shape)
    return plan.run(engine, ready(left), ready(right)).view(shape)  # type: ignore[no-any-return]


def _plan(
    graph: Graph, op: str, left: Tensor | None, right: Tensor | None, targets: tuple[str, str]
) -> tuple[Plan | None, tuple[int, ...]]:
    """The launch, None where there is nothing to launch; and the shape of the result."""
    if op == "dot":
        assert left is not None and right is not None
        shape, lhs, rhs, width, dim = _dot_operands(left, right)
    else:
        pattern = broadcast(trailing(left), trailing(right))
        lhs, rhs = as_operands(pattern, left, right)
        shape, width, dim = pattern.shape, pattern.width, pattern.dim
    shape = (graph.num_edges, *shape)
    if graph.num_edges * width == 0:
        return None, shape
    rows = rows_of(graph, "dst", max(lhs.row_bytes, rhs.row_bytes))
    dtype = (left if left is not None else right).dtype  # type: ignore[union-attr]
    return Plan(rows, op, dtype, lhs, rhs, targets, width, dim), shape


def _checked(graph: Graph, name: str, table: Tensor | None, target: str) -> Tensor:
    choice(f"{name}_target", target, NODES_AND_EDGES)
    return check_table(name, table, count_of(graph, target), graph.device)


def _dot_operands(
    left: Tensor, right: Tensor
) -> tuple[tuple[int, ...], Operand, Operand, int, int]:
    """Result shape, operands, dot products an edge, and their length."""
    scalars = left.dim() == right.dim() == 1
    left, right = (t.unsqueeze(-1) if t.dim() == 1 else t for t in (left, right))
    dim = left.shape[-1]
    if right.shape[-1] != dim:
        got = f"{tuple(left.shape[1:])} and {tuple(right.shape[1:])}"
        raise invalid("lhs, rhs", "last dimensions differ", got, "equal sizes, for dot")
    pattern = broadcast(tuple(left.shape[1:-1]), tuple(right.shape[1:-1]))
    operands = [
        Operand("row", row_bytes(table), _head_offsets(pattern, table, access))
        for table, access in zip((left, right), pattern.accesses, strict=True)
    ]
    for operand in operands:
        check_row_bytes(operand)
    shape = () if scalars else (*pattern.shape, 1)
    return shape, operands[0], operands[1], math.prod(pattern.shape), dim


def _head_offsets(pattern: Pattern, table: Tensor, access: str) -> Tensor | None:
    """Which head of an operand each head of the result reads; None: its own."""
    if access == "row":
        return None
    own = (1,) * (len(pattern.shape) - table.dim() + 2) + tuple(table.shape[1:-1])
    return offsets(own, pattern.shape, torch.device(table.device))

"""A sum or mean alone: over rows (the generalised SpMM), through cuSPARSE, or over tiles."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.profile import note_choice
from gnn_backend.runtime.aggregation import Message
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.sparse import cusparse, sddmm, selection, spmm, tile_sums
from gnn_backend.runtime.sparse.aggregation_plans import edge_operand
from gnn_backend.runtime.sparse.model import CUSPARSE, TILES
from gnn_backend.runtime.sparse.rows import rows_of
from gnn_backend.runtime.sparse.selection import Choice
from gnn_backend.runtime.sparse.spmm import Operand

#: Messages whose sums are linear in the sources' rows.
OPERATORS = {"copy": "copy_lhs", "mul": "mul", "add": "add"}


def reduced(
    engine: DeviceEngine, graph: Graph, direction: Direction, reduce: str, message: Message
) -> Tensor:
    """Sum or mean of messages over the rows of ``direction``, in the operands' dtype.

    ``message.x`` [nodes at the other end, H, D].
    """
    table, edge = message.x, message.edge
    if message.kind == "add":
        return _over_rows(engine, graph, direction, reduce, message, None)
    _, heads, dim = table.shape
    values = 0 if edge is None else edge.shape[1:].numel()
    family = selection.family_of((reduce,), values)
    form = selection.Form(family, reduce, table.dtype, heads, dim, values)

    def run(choice: Choice) -> Tensor:
        mean = reduce == "mean"
        if choice.path == CUSPARSE:
            weights = None if edge is None else edge.view(-1)
            flat = table.view(-1, heads * dim)
            out = cusparse.product(graph, direction, flat, weights, mean=mean)
            return out.view(-1, heads, dim)
        if choice.path == TILES:
            return tile_sums.tile_sum(engine, graph, direction, table, edge, mean=mean)
        return _over_rows(engine, graph, direction, reduce, message, choice.chunk)

    choice = selection.choose(engine, graph, direction, form, run)
    note_choice(lambda: choice.describe(form, direction))
    return run(choice)


def backward_x(engine: DeviceEngine, graph: Graph, message: Message, grad: Tensor) -> Tensor:
    """Gradient of the sources' rows from that of the sum [num_dst, H, D]."""
    if message.kind == "mul":
        return reduced(engine, graph, "src", "sum", message._replace(x=grad))
    return reduced(engine, graph, "src", "sum", Message("copy", grad, None))


def _over_rows(
    engine: DeviceEngine, graph: Graph, direction: Direction, reduce: str, message: Message,
    chunk: int | None,
) -> Tensor:  # fmt: skip
    table, edge = message.x, message.edge
    op, (_, heads, dim) = OPERATORS[message.kind], table.shape
    rhs, shared = edge_operand(message)
    key = ("linear", direction, op, reduce, table.dtype, heads, dim, rhs.access, shared, chunk)
    plan = graph.plans.get(key)
    if plan is None:
        lhs = _row(table)
        rows = rows_of(graph, direction, max(lhs.row_bytes, rhs.row_bytes), chunk)
        plan = graph.plans[key] = spmm.Plan(
            rows, op, reduce, table.dtype, lhs, rhs, heads * dim, shared, False
        )
    out: Tensor = plan.run(engine, table, edge).out
    return out.view(-1, heads, dim)


def backward_edge(engine: DeviceEngine, graph: Graph, message: Message, grad: Tensor) -> Tensor:
    """Gradient of the edges' values from that of the sum [num_dst, H, D]."""
    assert message.edge is not None
    x, shape = message.x, message.edge.shape
    operand, shared = edge_operand(message)
    width = x.shape[1:].numel()
    values = width // shared
    whole = operand.access == "row"
    if message.kind == "add" and not whole:
        wide = torch.promote_types(grad.dtype, torch.float32)
        grad = grad.reshape(-1, values, shared).sum(-1, dtype=wide).to(x.dtype)
    key = ("linear edge", message.kind, x.dtype, width, shared, whole)
    plan = graph.plans.get(key)
    if plan is None:
        rhs = _row(grad)
        rows = rows_of(graph, "dst", max(_row(x).row_bytes, rhs.row_bytes))
        if message.kind == "add":
            op, lhs, dim = "copy_rhs", Operand(), 1
        else:
            op, lhs, dim = ("mul", _row(x), 1) if whole else ("dot", _row(x), shared)
        plan = graph.plans[key] = sddmm.Plan(rows, op, x.dtype, lhs, rhs, ("u", "v"), values, dim)
    out: Tensor = plan.run(engine, None if message.kind == "add" else x, grad)
    return out.view(shape)


def _row(table: Tensor) -> Operand:
    return Operand("row", table.shape[1:].numel() * table.element_size())

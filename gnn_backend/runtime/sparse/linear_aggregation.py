"""A sum or mean alone: over rows (the generalised SpMM), through cuSPARSE, or over tiles."""

from __future__ import annotations

from functools import partial
from typing import Protocol

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
from gnn_backend.runtime.sparse.selection import Choice, Settled
from gnn_backend.runtime.sparse.spmm import Operand

#: Messages whose sums are linear in the sources' rows.
OPERATORS = {"copy": "copy_lhs", "mul": "mul", "add": "add"}


class _Way(Protocol):
    """A pass as it was chosen; it holds no graph, as graphs hold it."""

    def __call__(
        self, engine: DeviceEngine, graph: Graph, x: Tensor, edge: Tensor | None
    ) -> Tensor: ...  # fmt: skip


def reduced(
    engine: DeviceEngine, graph: Graph, direction: Direction, reduce: str, message: Message
) -> Tensor:
    """Sum or mean of messages over the rows of ``direction``, in the operands' dtype.

    ``message.x`` [nodes at the other end, *], the result [rows, *].
    """
    kind, x, edge = message
    key = ("reduced", direction, reduce, kind, x.dtype, *message.tails)
    found: Settled[_Way] | None = graph.plans.get(key)
    if found is None or not found.holds():
        found = _settled(engine, graph, direction, reduce, message)
        found.keep(graph, key)
    note_choice(found.describe)
    return found.run(engine, graph, x, edge)


def _settled(
    engine: DeviceEngine, graph: Graph, direction: Direction, reduce: str, message: Message
) -> Settled[_Way]:
    """The choice for a pass, and the pass as chosen."""
    (heads, dim), (_, tail) = message.heads, message.tails
    values = 0 if tail is None else tail.numel()
    form = selection.Form(
        selection.family_of((reduce,), values), reduce, message.x.dtype, heads, dim, values
    )
    if message.kind == "add":
        over_rows = _over_rows(graph, direction, reduce, message, None)
        return Settled(over_rows, None, form, direction)

    def way(choice: Choice) -> _Way:
        mean = reduce == "mean"
        if choice.path == CUSPARSE:
            return partial(_by_cusparse, direction=direction, mean=mean)
        if choice.path == TILES:
            return partial(_over_tiles, direction=direction, mean=mean, heads=heads)
        return _over_rows(graph, direction, reduce, message, choice.chunk)

    def run(choice: Choice) -> Tensor:
        return way(choice)(engine, graph, message.x, message.edge)

    choice = selection.choose(engine, graph, direction, form, run)
    return Settled(way(choice), choice, form, direction)


def backward_x(engine: DeviceEngine, graph: Graph, message: Message, grad: Tensor) -> Tensor:
    """Gradient of the sources' rows from that of the sum [num_dst, *]."""
    edge = message.edge if message.kind == "mul" else None
    kind = "copy" if edge is None else "mul"
    return reduced(engine, graph, "src", "sum", Message(kind, grad, edge))


def _by_cusparse(
    engine: DeviceEngine, graph: Graph, x: Tensor, edge: Tensor | None, *, direction: Direction,
    mean: bool,
) -> Tensor:  # fmt: skip
    weights = None if edge is None else edge.view(-1)
    out = cusparse.product(graph, direction, x.flatten(1), weights, mean=mean)
    return out if x.dim() == 2 else out.view(-1, *x.shape[1:])


def _over_tiles(
    engine: DeviceEngine, graph: Graph, x: Tensor, edge: Tensor | None, *, direction: Direction,
    mean: bool, heads: int,
) -> Tensor:  # fmt: skip
    return tile_sums.tile_sum(engine, graph, direction, x, edge, heads=heads, mean=mean)


def _over_rows(
    graph: Graph, direction: Direction, reduce: str, message: Message, chunk: int | None
) -> _Way:
    kind, table, _ = message
    op, width = OPERATORS[kind], table.shape[1:].numel()
    rhs, shared = edge_operand(message)
    key = ("linear", direction, op, reduce, table.dtype, width, rhs.access, shared, chunk)
    plan: spmm.Plan | None = graph.plans.get(key)
    if plan is None:
        lhs = _row(table)
        rows = rows_of(graph, direction, max(lhs.row_bytes, rhs.row_bytes), chunk)
        plan = graph.plans[key] = spmm.Plan(
            rows, op, reduce, table.dtype, lhs, rhs, width, shared, False
        )
    launch, num_rows = plan.launch, plan.rows.num_rows

    def run(engine: DeviceEngine, graph: Graph, x: Tensor, edge: Tensor | None) -> Tensor:
        out = x.new_empty((num_rows, *x.shape[1:]))
        launch(engine, x, edge, spmm.Result(out))
        return out

    return run


def backward_edge(engine: DeviceEngine, graph: Graph, message: Message, grad: Tensor) -> Tensor:
    """Gradient of the edges' values from that of the sum [num_dst, *]."""
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

"""Aggregation on the device engine: CUDA, and the host emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.profile import note_choice
from gnn_backend.runtime.aggregation import Forward, Message
from gnn_backend.runtime.device import DeviceEngine
from gnn_backend.runtime.sparse import linear_aggregation as linear
from gnn_backend.runtime.sparse import selection
from gnn_backend.runtime.sparse.aggregation_instances import (
    FIRST,
    KEEP,
    PARTS,
    SECOND,
    STATISTICS,
    flags_of,
)
from gnn_backend.runtime.sparse.aggregation_plans import BackwardEdgePlan, BackwardPlan, ForwardPlan
from gnn_backend.runtime.sparse.rows import rows_of

_LINEAR = frozenset(("sum", "mean"))


class DeviceAggregation:
    """Aggregation of messages in one pass, and its backward by source.

    Unlike the primitives of other engines all values, and their gradients, are in the operands'
    dtype, so that 16-bit results are rounded once and written once; and ``reductions`` has what
    the pass finishes by itself.

    Parameters
    ----------
    engine : DeviceEngine
    """

    reductions = frozenset(PARTS)

    def __init__(self, engine: DeviceEngine) -> None:
        self.engine = engine

    def aggregate_forward(
        self,
        graph: Graph,
        message: Message,
        wanted: tuple[str, ...],
        *,
        first: bool,
        nan_wins: bool,
        temperature: Tensor | float | None,
        save: bool,
    ) -> Forward:
        """One pass over the neighbours; see ``launch.AggregationEngine``."""
        x = message.x
        if len(wanted) == 1 and wanted[0] in _LINEAR and message.kind in linear.OPERATORS:
            return Forward(
                {wanted[0]: linear.reduced(self.engine, graph, "dst", *wanted, message)}, {}
            )
        second = save and isinstance(temperature, Tensor)
        flags = flags_of(wanted, keep=save, first=first, nan_wins=nan_wins, second=second)
        shape = (graph.num_dst, *x.shape[1:])
        values = {name: x.new_empty(shape) for name in wanted}
        wide = torch.promote_types(x.dtype, torch.float32)
        numbers = graph.by_dst.indptr.dtype
        saved = {
            name: x.new_empty(shape, dtype=numbers if place else wide)
            for name, place in _saved(wanted, flags, save)
        }
        heat, results = _heat(temperature, x), {**values, **saved}
        self._pass(
            ForwardPlan, graph, "dst", message, flags, wanted,
            lambda plan: plan.run(self.engine, message, heat, results),
        )  # fmt: skip
        return Forward(values, saved)

    def aggregate_backward(
        self,
        graph: Graph,
        message: Message,
        forward: Forward,
        grads: dict[str, Tensor],
        *,
        first: bool,
        nan_wins: bool,
        temperature: Tensor | float | None,
        needs_x: bool,
        needs_edge: bool,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of x, the edges' values and the temperature; see ``launch``."""
        of_temperature = None
        if isinstance(temperature, Tensor) and "softmax" in grads:
            spread = forward.saved["softmax_spread"]
            of_temperature = (grads["softmax"] * spread).flatten(1).sum(0)
            if temperature.numel() == 1:
                of_temperature = of_temperature.sum().reshape(1)
        needs_edge = needs_edge and message.edge is not None
        of_x = of_edge = None
        if _LINEAR.issuperset(grads) and message.kind in linear.OPERATORS:
            grad = _of_sum(graph, grads, message.x.dtype)
            if needs_x:
                of_x = linear.backward_x(self.engine, graph, message, grad)
            if needs_edge:
                of_edge = linear.backward_edge(self.engine, graph, message, grad)
            return of_x, of_edge, of_temperature
        flags = flags_of(grads, keep=True, first=first, nan_wins=nan_wins) & ~KEEP
        tables = gradient_tables(graph, forward, grads, first=first)
        heat = _heat(temperature, message.x) if flags & STATISTICS["softmax"] else None

        def run(plan: Any) -> Tensor:
            found: Tensor = plan.run(self.engine, message, tables, heat)
            return found

        if needs_x:
            of_x = self._pass(BackwardPlan, graph, "src", message, flags, tuple(grads), run)
        if needs_edge:
            of_edge = run(_plan(BackwardEdgePlan, graph, "dst", message, flags, None))
        return of_x, of_edge, of_temperature

    def _pass(
        self, kind: type[Any], graph: Graph, direction: Direction, message: Message, flags: int,
        names: tuple[str, ...], run: Callable[[Any], Any],
    ) -> Any:  # fmt: skip
        """Run a pass over the rows of ``direction`` at the task length that is chosen for it."""
        key = ("pass", kind, message.kind, flags, names, message.x.dtype, *message.tails)
        found: selection.Settled[Any] | None = graph.plans.get(key)
        if found is None or not found.holds():
            (heads, dim), (_, tail) = message.heads, message.tails
            values = 0 if tail is None else tail.numel()
            family = selection.family_of(names, values)
            if family in selection.LINEAR:  # of messages that are not linear in the rows
                family = "several"
            form = selection.Form(family, ", ".join(names), message.x.dtype, heads, dim, values)

            def plan(choice: selection.Choice) -> Any:
                return _plan(kind, graph, direction, message, flags, choice.chunk)

            choice = selection.choose(
                self.engine, graph, direction, form, lambda choice: run(plan(choice))
            )
            found = selection.Settled(plan(choice), choice, form, direction)
            found.keep(graph, key)
        note_choice(found.describe)
        return run(found.run)


def _plan(
    kind: type[Any], graph: Graph, direction: Direction, message: Message, flags: int,
    chunk: int | None,
) -> Any:  # fmt: skip
    """The plan of such calls, kept with the graph."""
    x = message.x
    key = (kind, message.kind, flags, x.dtype, *message.tails, chunk)
    found = graph.plans.get(key)
    if found is None:
        rows = rows_of(graph, direction, x.shape[1:].numel() * x.element_size(), chunk)
        found = graph.plans[key] = kind(rows, message, flags)
    return found


def _saved(wanted: tuple[str, ...], flags: int, save: bool) -> Iterator[tuple[str, bool]]:
    """What backward wants beside the values, and whether it is the number of an edge."""
    if not save:
        return
    if not {"var", "std"}.isdisjoint(wanted):
        yield "center", False
    for name in ("max", "min"):
        if name in wanted:
            yield f"{name}_kept", bool(flags & FIRST)
    if "mul" in wanted:
        yield "mul_rest", False
        yield "mul_zeros", False
    if "softmax" in wanted:
        yield "softmax_lse", False
        if flags & SECOND:
            yield "softmax_spread", False


def _heat(temperature: Tensor | float | None, x: Tensor) -> Tensor | None:
    """One value, or one a column, in the accumulator's dtype."""
    if temperature is None:
        return None
    wide = torch.promote_types(x.dtype, torch.float32)
    if isinstance(temperature, Tensor):
        return temperature.detach().to(wide).contiguous()
    return torch.full((1,), temperature, dtype=wide, device=x.device)


def _degrees(graph: Graph, dtype: torch.dtype, dims: int) -> Tensor:
    """In-degrees, at least 1, [num_dst, 1, ...] with ``dims`` dimensions."""
    key = ("degrees", dtype, dims)
    found = graph.plans.get(key)
    if found is None:
        counts = graph.by_dst.indptr.diff().clamp(min=1).to(dtype)
        found = graph.plans[key] = counts.view(-1, *(1,) * (dims - 1))
    return found  # type: ignore[no-any-return]


def _of_sum(graph: Graph, grads: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Gradient of the sum that sums and means give."""
    if "mean" not in grads:
        return grads["sum"]
    wide = torch.promote_types(dtype, torch.float32)
    grad = grads["mean"] / _degrees(graph, wide, grads["mean"].dim())
    return (grad + grads["sum"] if "sum" in grads else grad).to(dtype)


def gradient_tables(
    graph: Graph, forward: Forward, grads: dict[str, Tensor], *, first: bool
) -> dict[str, Tensor]:
    """What backward gathers: keys of ``aggregation_plans.TABLES``, each [num_dst, *]."""
    values, saved = forward
    tables: dict[str, Tensor] = {}
    like = next(iter(grads.values()))
    wide = torch.promote_types(like.dtype, torch.float32)
    tables.update(_polynomial(graph, forward, grads, wide))
    for name, table in (("max", "most"), ("min", "least")):
        if name in grads:
            kept = saved[f"{name}_kept"]
            tables[table] = kept if first else values[name]
            tables[f"{table}_grad"] = grads[name] if first else (grads[name] / kept).to(like.dtype)
    if "mul" in grads:
        grad = grads["mul"].to(wide)
        tables["whole"] = grad * values["mul"]
        tables["lone"] = torch.where(saved["mul_zeros"] == 1, grad * saved["mul_rest"], 0)
    if "softmax" in grads:
        tables["lse"] = saved["softmax_lse"]
        tables["softmax"], tables["softmax_grad"] = values["softmax"], grads["softmax"]
    return tables


def _polynomial(
    graph: Graph, forward: Forward, grads: dict[str, Tensor], wide: torch.dtype
) -> dict[str, Tensor]:
    """The gradient a + b m that sums, means and variances give a message m: a and b.

    In few passes over the nodes: on a graph of few edges they are what backward costs beside its
    gathers.
    """
    linear = quadratic = None
    degrees = _degrees(graph, wide, next(iter(grads.values())).dim())
    if "mean" in grads:
        linear = grads["mean"] / degrees
    if "sum" in grads:
        total = grads["sum"].to(wide)
        linear = total if linear is None else linear.add_(total)
    slope = None
    if "std" in grads:
        std = forward.values["std"].to(wide)
        slope = (grads["std"] / std).masked_fill_(std == 0, 0)
    if "var" in grads:
        of_var = 2 * grads["var"].to(wide)
        slope = of_var if slope is None else slope.add_(of_var)
    if slope is not None:
        quadratic, center = slope.div_(degrees), forward.saved["center"]
        if linear is None:
            linear = (center * quadratic).neg_()
        else:
            linear = torch.addcmul(linear, center, quadratic, value=-1)
    if "square" in grads:
        of_square = 2 * grads["square"].to(wide)
        quadratic = of_square if quadratic is None else quadratic + of_square
    found = {"linear": linear, "quadratic": quadratic}
    return {name: table for name, table in found.items() if table is not None}

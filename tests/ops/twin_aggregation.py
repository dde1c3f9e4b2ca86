"""An aggregation engine of plain torch, to test what is above engines on its own."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.reference.aggregation import Rules, aggregate
from gnn_backend.profile import count_launch
from gnn_backend.runtime.aggregation import Forward, Message


def aggregate_forward(
    graph: Graph,
    message: Message,
    wanted: tuple[str, ...],
    *,
    first: bool,
    nan_wins: bool,
    temperature: Tensor | float | None,
    save: bool,
) -> Forward:
    count_launch("twin", "aggregate_forward")
    rules = Rules(first, nan_wins, 1.0 if temperature is None else temperature)
    return Forward(_typed(aggregate(graph, message, wanted, rules), message), {})


def aggregate_backward(
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
    count_launch("twin", "aggregate_backward")
    with torch.enable_grad():
        x, edge, heat = (
            t.detach().requires_grad_() if isinstance(t, Tensor) else None
            for t in (message.x, message.edge, temperature)
        )
        assert x is not None
        fixed = 1.0 if temperature is None else temperature
        rules = Rules(first, nan_wins, fixed if heat is None else heat)
        found = _typed(
            aggregate(graph, Message(message.kind, x, edge), tuple(grads), rules), message
        )
        inputs = [t for t in (x, edge, heat) if t is not None]
        outs = [found[name] for name in grads]
        given = [g.to(found[name].dtype) for name, g in grads.items()]
        got = torch.autograd.grad(outs, inputs, given, allow_unused=True, materialize_grads=True)
    by_input = iter(got)
    return tuple(None if t is None else next(by_input) for t in (x, edge, heat))  # type: ignore[return-value]


def _typed(values: dict[str, Tensor], message: Message) -> dict[str, Tensor]:
    """Extremes in the operands' dtype, as the engines give them."""
    exact = ("max", "min")
    return {n: v.to(message.x.dtype) if n in exact else v for n, v in values.items()}

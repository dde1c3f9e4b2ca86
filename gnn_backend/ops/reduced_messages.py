"""The autograd node of aggregation: primitives from an engine, or from plain torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.ops.reference import aggregation as reference
from gnn_backend.ops.reference.aggregation import Rules
from gnn_backend.ops.reference.broadcast import accumulator
from gnn_backend.ops.softmax_attention import kernel_ready, refuse_batch
from gnn_backend.profile import note_choice
from gnn_backend.runtime.aggregation import Forward, Message
from gnn_backend.runtime.launch import AggregationEngine, aggregation_engine
from gnn_backend.runtime.reordering import arranged

#: What every engine computes.
PRIMITIVES = frozenset(("sum", "square", "max", "min", "mul", "softmax"))
#: The primitives that other reductions are made of, node by node.
PARTS = {"mean": ("sum",), "var": ("sum", "square"), "std": ("sum", "square")}


class _Call(NamedTuple):
    """What a call has beside its tensors."""

    graph: Graph
    kind: str
    wanted: tuple[str, ...]
    rules: Rules  # a temperature that is a tensor is not in here
    engine: AggregationEngine
    save: bool

    @property
    def finishes(self) -> bool:
        """Whether the engine works from and to the operands' dtype."""
        return hasattr(self.engine, "reductions")

    @property
    def flags(self) -> dict[str, bool]:
        return {"first": self.rules.first, "nan_wins": self.rules.nan_wins}

    def temperature(self, given: Tensor | None) -> Tensor | float | None:
        if "softmax" not in self.wanted:
            return None
        return self.rules.temperature if given is None else given


def reduce_messages(
    graph: Graph, message: Message, names: tuple[str, ...], rules: Rules
) -> dict[str, Tensor]:
    """Reductions of messages, each neighbour's row read once.

    Parameters
    ----------
    graph : Graph
    message : Message
        Checked; of any layout in memory.
    names : tuple of str
        Keys of the reference's reductions, without repetition.
    rules : Rules

    Returns
    -------
    dict of str to Tensor [num_dst, H, D]
        In the operands' dtype.
    """
    x, dtype = message.x, message.x.dtype
    size = graph.num_edges * graph.num_dst * x.shape[1] * x.shape[2]
    try:
        engine = aggregation_engine(x.device, dtype) if size else None
    except Unsupported as missing:
        reason = missing.reason
        note_choice(lambda: f"aggregation: plain torch, {reason}")
        engine = None
    if engine is None:
        found = reference.aggregate(graph, message, names, rules)
        return {name: value.to(dtype) for name, value in found.items()}
    known: frozenset[str] = getattr(engine, "reductions", PRIMITIVES)
    parts = [[name] if name in known else PARTS[name] for name in names]
    wanted = tuple(dict.fromkeys(part for some in parts for part in some))
    given = rules.temperature
    heat = given if isinstance(given, Tensor) and "softmax" in wanted else None
    fixed = rules._replace(temperature=1.0) if isinstance(given, Tensor) else rules
    tensors = (x, message.edge, heat)
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    graph = arranged(graph, x, x[:1].numel())
    call = _Call(graph, message.kind, wanted, fixed, engine, save)
    values = dict(zip(wanted, _Reduction.apply(call, *tensors), strict=True))
    return {name: _finished(name, values, graph).to(dtype) for name in names}


def _finished(name: str, values: dict[str, Tensor], graph: Graph) -> Tensor:
    """A reduction out of the engine's values."""
    if name in values:
        return values[name]
    degree = graph.by_dst.indptr.diff().clamp(min=1).view(-1, 1, 1)
    if name == "mean":
        return values["sum"] / degree
    var = reference.variance(values["sum"], values["square"], degree)
    return var if name == "var" else reference.deviation(var)


class _Reduction(torch.autograd.Function):
    """Saves the operands, the results and what the engine wants; nothing edge-wise."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, x: Tensor, edge: Tensor | None, temperature: Tensor | None
    ) -> tuple[Tensor, ...]:
        message = _ready(call, x, edge)
        values, saved = call.engine.aggregate_forward(
            call.graph, message, call.wanted, **call.flags,
            temperature=call.temperature(temperature), save=call.save,
        )  # fmt: skip
        ctx.call, ctx.names = call, tuple(saved)
        ctx.set_materialize_grads(False)  # an unused result costs nothing
        results = tuple(values[name] for name in call.wanted)
        ctx.save_for_backward(x, edge, temperature, *results, *saved.values())
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        x, edge, temperature, *rest = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        given = {n: g for n, g in zip(call.wanted, grads, strict=True) if g is not None}
        for grad in given.values():
            refuse_batch(grad)
        if not given or not any(needs):
            return (None,) * 4
        if torch.is_grad_enabled():  # create_graph=True: the gradient must have a graph itself
            return (None, *_twin_gradients(call, (x, edge, temperature), needs, given))
        count = len(call.wanted)
        values = dict(zip(call.wanted, rest[:count], strict=True))
        saved = dict(zip(ctx.names, rest[count:], strict=True))
        wide = x.dtype if call.finishes else accumulator(x.dtype)
        ready = {name: kernel_ready(grad.to(wide)) for name, grad in given.items()}
        found = call.engine.aggregate_backward(
            call.graph, _ready(call, x, edge), Forward(values, saved), ready, **call.flags,
            temperature=call.temperature(temperature), needs_x=needs[0], needs_edge=needs[1],
        )  # fmt: skip
        pairs = zip(found, (x, edge, temperature), needs, strict=True)
        return (None, *(g.to(t.dtype) if n and g is not None else None for g, t, n in pairs))


def _ready(call: _Call, x: Tensor, edge: Tensor | None) -> Message:
    return Message(call.kind, kernel_ready(x), None if edge is None else kernel_ready(edge))


def _twin_gradients(
    call: _Call,
    operands: tuple[Tensor | None, ...],
    needs: tuple[bool, ...],
    grads: dict[str, Tensor],
) -> tuple[Tensor | None, ...]:
    """Differentiable gradients, by differentiating the plain torch twin."""
    # Views, as one tensor may be given twice and each use has a gradient of its own.
    x, edge, temperature = (None if t is None else t.view_as(t) for t in operands)
    assert x is not None
    rules = call.rules if temperature is None else call.rules._replace(temperature=temperature)
    found = reference.aggregate(call.graph, Message(call.kind, x, edge), tuple(grads), rules)
    pairs = zip((x, edge, temperature), needs, strict=True)
    inputs = [t for t, need in pairs if need and t is not None]
    got = iter(torch.autograd.grad(
        [found[name] for name in grads], inputs,
        [grad.to(found[name].dtype) for name, grad in grads.items()],
        create_graph=True, allow_unused=True,
    ))  # fmt: skip
    return tuple(next(got) if need else None for need in needs)

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
from gnn_backend.ops.softmax_attention import kernel_ready, observed, refuse_batch
from gnn_backend.profile import note_choice
from gnn_backend.runtime.aggregation import Forward, Message
from gnn_backend.runtime.launch import AggregationEngine, aggregation_engine
from gnn_backend.runtime.reordering import arranged

#: What every engine computes.
PRIMITIVES = frozenset(("sum", "square", "max", "min", "mul", "softmax"))
#: The primitives that other reductions are made of, node by node.
PARTS = {"mean": ("sum",), "var": ("sum", "square"), "std": ("sum", "square")}


#: Reductions whose backward does not read their values, which may so be changed in place.
_NOT_READ = frozenset(("sum", "mean", "square", "var"))


class _Call(NamedTuple):
    """What calls have in common, beside their tensors."""

    graph: Graph
    kind: str
    wanted: tuple[str, ...]
    rules: Rules  # a temperature that is a tensor is not in here
    engine: AggregationEngine
    finishes: bool  # whether the engine works from and to the operands' dtype
    flags: dict[str, bool]

    def temperature(self, given: Tensor | None) -> Tensor | float | None:
        if "softmax" not in self.wanted:
            return None
        return self.rules.temperature if given is None else given

    def read_back(self) -> tuple[str, ...]:
        """Values that backward reads: what is changed in place afterwards cannot be among them."""
        unread = _NOT_READ | {"max", "min"} if self.rules.first else _NOT_READ
        return tuple(name for name in self.wanted if name not in unread)

    def run(self, x: Tensor, edge: Tensor | None, heat: Tensor | None, save: bool) -> Forward:
        return self.engine.aggregate_forward(
            self.graph, _ready(self, x, edge), self.wanted, **self.flags,
            temperature=self.temperature(heat), save=save,
        )  # fmt: skip


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
    dict of str to Tensor [num_dst, *]
        In the operands' dtype and the trailing shape of ``message.x``.
    """
    x, dtype = message.x, message.x.dtype
    engine = None
    if graph.num_edges and graph.num_dst and x.numel():
        try:
            engine = aggregation_engine(x.device, dtype)
        except Unsupported as missing:
            reason = missing.reason
            note_choice(lambda: f"aggregation: plain torch, {reason}")
    if engine is None:
        shaped = with_heads(message)
        found = reference.aggregate(graph, shaped, names, rules)
        shape = (graph.num_dst, *x.shape[1:])
        return {name: value.to(dtype).view(shape) for name, value in found.items()}
    known: frozenset[str] | None = getattr(engine, "reductions", None)
    if known is not None and known.issuperset(names):
        wanted = names
    else:
        parts = [[name] if name in (known or PRIMITIVES) else PARTS[name] for name in names]
        wanted = tuple(dict.fromkeys(part for some in parts for part in some))
    given, heat = rules.temperature, None
    if isinstance(given, Tensor):
        heat = given if "softmax" in wanted else None
        rules = rules._replace(temperature=1.0)
    if known is None:
        message = with_heads(message)
    graph = arranged(graph, x, x.shape[1:].numel())
    flags = {"first": rules.first, "nan_wins": rules.nan_wins}
    call = _Call(graph, message.kind, wanted, rules, engine, known is not None, flags)
    values = _values(call, message.x, message.edge, heat)
    if known is not None and wanted is names:
        return values
    shape = (graph.num_dst, *x.shape[1:])
    return {name: _finished(name, values, graph).to(dtype).view(shape) for name in names}


def with_heads(message: Message) -> Message:
    """The same with rows of two dimensions."""
    kind, x, edge = message
    if x.dim() == 3:
        return message
    if edge is not None and edge.dim() > 1:
        edge = edge.unsqueeze(1)
    return Message(kind, x.unsqueeze(1), edge)


def _values(
    call: _Call, x: Tensor, edge: Tensor | None, heat: Tensor | None
) -> dict[str, Tensor]:  # fmt: skip
    """What the engine gives, through autograd where that may want to know of it."""
    tensors = (x, edge, heat)
    if observed(tensors):
        return dict(zip(call.wanted, _Reduction.apply(call, *tensors), strict=True))
    return call.run(x, edge, heat, save=False).values


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
    """Saves the operands, results that are read and what the engine wants; nothing edge-wise."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, x: Tensor, edge: Tensor | None, temperature: Tensor | None
    ) -> tuple[Tensor, ...]:
        values, saved = call.run(x, edge, temperature, True)
        ctx.call, ctx.names = call, tuple(saved)
        ctx.set_materialize_grads(False)  # an unused result costs nothing
        read = [values[name] for name in call.read_back()]
        ctx.save_for_backward(x, edge, temperature, *read, *saved.values())
        return tuple(values[name] for name in call.wanted)

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
        read = call.read_back()
        values = dict(zip(read, rest[: len(read)], strict=True))
        saved = dict(zip(ctx.names, rest[len(read) :], strict=True))
        wide = x.dtype if call.finishes else accumulator(x.dtype)
        ready = {name: kernel_ready(_as(wide, grad)) for name, grad in given.items()}
        found = call.engine.aggregate_backward(
            call.graph, _ready(call, x, edge), Forward(values, saved), ready, **call.flags,
            temperature=call.temperature(temperature), needs_x=needs[0], needs_edge=needs[1],
        )  # fmt: skip
        pairs = zip(found, (x, edge, temperature), needs, strict=True)
        return (None, *(_as(t.dtype, g) if n and g is not None else None for g, t, n in pairs))


def _as(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """``Tensor.to``, which takes two microseconds to find that there is nothing to do."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


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
    message = with_heads(Message(call.kind, x, edge))
    found = reference.aggregate(call.graph, message, tuple(grads), rules)
    pairs = zip((x, edge, temperature), needs, strict=True)
    inputs = [t for t, need in pairs if need and t is not None]
    got = iter(torch.autograd.grad(
        [found[name] for name in grads], inputs,
        [grad.to(found[name].dtype).view_as(found[name]) for name, grad in grads.items()],
        create_graph=True, allow_unused=True,
    ))  # fmt: skip
    return tuple(next(got) if need else None for need in needs)

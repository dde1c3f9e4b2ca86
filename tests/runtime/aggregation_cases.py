"""Aggregations on the CPU engine, and the same by plain torch and autograd in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.runtime import cpu_aggregation
from gnn_backend.runtime.aggregation import Message

ALL = ("sum", "square", "max", "min", "mul", "softmax")


@dataclass
class Case:
    """One call: everything that decides it, and cotangents for all results."""

    graph: Graph
    kind: str
    x: Tensor
    edge: Tensor | None = None
    wanted: tuple[str, ...] = ALL
    first: bool = False
    nan_wins: bool = True
    temperature: Tensor | float | None = None
    cotangents: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(9)
        shape = self.graph.num_dst, *self.x.shape[1:]
        for name in self.wanted:
            drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
            self.cotangents.setdefault(name, drawn)


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def edge_operand(graph: Graph, form: str, heads: int, width: int, dtype: torch.dtype) -> Tensor:
    sizes = {"number": (), "heads": (heads,), "rows": (heads, width)}
    return draw(graph.num_edges, *sizes[form], dtype=dtype, seed=4)


def engine_results(
    case: Case, needs_x: bool = True, needs_edge: bool = True, save: bool = True
) -> dict[str, Tensor]:
    """Values and gradients of the engine."""
    message = Message(case.kind, case.x, case.edge)
    how = {"first": case.first, "nan_wins": case.nan_wins, "temperature": case.temperature}
    forward = cpu_aggregation.aggregate_forward(case.graph, message, case.wanted, **how, save=save)
    results = dict(forward.values)
    if not save:
        return results
    real = torch.float64 if case.x.dtype == torch.float64 else torch.float32
    grads = {name: case.cotangents[name].to(real) for name in case.wanted}
    found = cpu_aggregation.aggregate_backward(
        case.graph, message, forward, grads, **how, needs_x=needs_x, needs_edge=needs_edge
    )
    names = "grad_x", "grad_edge", "grad_temperature"
    return results | {n: g for n, g in zip(names, found, strict=True) if g is not None}


def messages(kind: str, x: Tensor, edge: Tensor | None) -> Tensor:
    if edge is not None:
        edge = edge.reshape(*edge.shape, *([1] * (3 - edge.dim())))
    return {
        "copy": lambda: x,
        "mul": lambda: x * edge,
        "add": lambda: x + edge,
        "add_relu": lambda: (x + edge).relu(),
    }[kind]()


def oracle_results(case: Case) -> dict[str, Tensor]:
    """The same by torch in float64: what differentiates is autograd."""
    graph = case.graph
    x = case.x.detach().double().requires_grad_()
    leaves: dict[str, Tensor] = {"grad_x": x}
    edge = None
    if case.edge is not None:
        leaves["grad_edge"] = edge = case.edge.detach().double().requires_grad_()
    t: Tensor | float = 1.0 if case.temperature is None else case.temperature
    if isinstance(t, Tensor):
        leaves["grad_temperature"] = leaf = t.detach().double().requires_grad_()
        t = leaf if leaf.numel() == 1 else leaf.view(x.shape[1:])
    by_dst = graph.by_dst
    rows = torch.repeat_interleave(torch.arange(graph.num_dst), by_dst.indptr.diff().long())
    ids = by_dst.edge_ids
    ordered = edge if edge is None or ids is None else edge[ids.long()]
    m = messages(case.kind, x[by_dst.indices.long()], ordered)
    values = {name: _reduce(name, m, rows, case, t) for name in case.wanted}
    cotangents = [case.cotangents[name].double() for name in case.wanted]
    grads = torch.autograd.grad(
        list(values.values()), list(leaves.values()), cotangents, allow_unused=True
    )
    found = {name: value.detach() for name, value in values.items()}
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        found[name] = torch.zeros_like(leaf) if grad is None else grad
    return found


def _reduce(name: str, m: Tensor, rows: Tensor, case: Case, t: Tensor | float) -> Tensor:
    shape = (case.graph.num_dst, *m.shape[1:])
    zeros, index = m.new_zeros(shape), rows.view(-1, 1, 1).expand_as(m)
    if name == "sum":
        return zeros.scatter_add(0, index, m)
    if name == "square":
        return zeros.scatter_add(0, index, m * m)
    if name == "mul":
        return m.new_ones(shape).scatter_reduce(0, index, m, "prod")
    if name == "softmax":
        z = m * t
        top = zeros.scatter_reduce(0, index, z.detach(), "amax", include_self=False)
        e = (z - top.gather(0, index)).exp()
        weight = zeros.scatter_add(0, index, e).gather(0, index)
        return zeros.scatter_add(0, index, e / weight * m)
    if case.first:
        return _first(name, m, case)
    if case.nan_wins:
        return zeros.scatter_reduce(0, index, m, f"a{name}", include_self=False)
    return _without_nan(name, m, index, zeros)


def _first(name: str, m: Tensor, case: Case) -> Tensor:
    """Row by row: the first of the winners, so that autograd gives it all."""
    indptr = case.graph.by_dst.indptr.tolist()
    out = []
    for begin, end in itertools.pairwise(indptr):
        row = m[begin:end]
        key = row.detach() if name == "max" else -row.detach()
        if begin == end:
            out.append(row.sum(0, keepdim=True))
            continue
        nothing = torch.zeros_like(key[:1], dtype=torch.bool)
        if not case.nan_wins:
            key = key.masked_fill(key.isnan(), -torch.inf)
            nothing = (key == -torch.inf).all(0, keepdim=True)
        best = key.amax(0, keepdim=True)
        won = (key == best) | (best.isnan() & key.isnan())
        position = torch.argmax(won.to(torch.uint8), 0, keepdim=True)
        out.append(row.gather(0, position).masked_fill(nothing, 0.0))
    return torch.cat(out) if out else m[:0]


def _without_nan(name: str, m: Tensor, index: Tensor, zeros: Tensor) -> Tensor:
    """Even ties where NaN never wins, a result of 0 tied with the zero it starts from."""
    low = -torch.inf if name == "max" else torch.inf
    known = m.detach().masked_fill(m.isnan(), low)
    best = zeros.scatter_reduce(0, index, known, f"a{name}", include_self=False)
    won = (m.detach() == best.gather(0, index)) & (known != low)
    ties = zeros.scatter_add(0, index, won.to(m.dtype))
    share = (ties > 0) / (ties + (best == 0)).clamp(min=1)
    weighted = torch.where(won, m, 0.0) * share.gather(0, index)
    total = zeros.scatter_add(0, index, weighted)
    return best.masked_fill(ties == 0, 0.0) + (total - total.detach())  # finite messages alone

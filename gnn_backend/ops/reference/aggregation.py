"""Aggregation of messages in plain differentiable torch.

The oracle of the kernels' tests, the graph of second derivatives, and what runs where no engine
does. Edge-wise values are stored here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.reference.broadcast import accumulator
from gnn_backend.ops.twins import Edges
from gnn_backend.runtime.aggregation import Message

STD_FLOOR = 1e-5  # variances up to it have the deviation 0, and no gradient, as in PyG


class Rules(NamedTuple):
    """How an aggregation decides what formulas leave open.

    Attributes
    ----------
    first : bool
        The first edge of equal ones gets the gradient of an extreme, else they share it evenly.
    nan_wins : bool
        A NaN is larger and smaller than every number, else it never wins.
    temperature : Tensor [1] or [H * D], or float
        Of the softmax.
    """

    first: bool = False
    nan_wins: bool = True
    temperature: Tensor | float = 1.0


class _Rows(NamedTuple):
    """Messages in ``by_dst`` order, and the row of each."""

    messages: Tensor
    dst: Tensor
    num_rows: int
    degree: Tensor
    dtype: torch.dtype  # of the operands

    def sum(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.num_rows, *values.shape[1:]).index_add(0, self.dst, values)

    def places(self, like: Tensor) -> Tensor:
        return self.dst.view(-1, 1, 1).expand_as(like)


def aggregate(
    graph: Graph, message: Message, names: tuple[str, ...], rules: Rules | None = None
) -> dict[str, Tensor]:
    """Reduce messages at destinations.

    Parameters
    ----------
    graph : Graph
    message : Message
    names : tuple of str
        Among ``sum``, ``mean``, ``square`` (sum of squares), ``var``, ``std``, ``max``, ``min``,
        ``mul`` and ``softmax``.
    rules : Rules, optional

    Returns
    -------
    dict of str to Tensor [num_dst, H, D]
        In the accumulator's dtype: float32 for 16 bits. Rows without edges are 0, of ``mul`` 1.
    """
    edges = Edges.of(graph)
    degree = graph.by_dst.indptr.diff().clamp(min=1).view(-1, 1, 1)
    values = messages(edges, message)
    rows = _Rows(values, edges.dst, graph.num_dst, degree, message.x.dtype)
    return {name: _REDUCTIONS[name](rows, rules or Rules()) for name in names}


def messages(edges: Edges, message: Message) -> Tensor:
    """Messages [E, H, D] in ``by_dst`` order, in the accumulator's dtype."""
    wide = accumulator(message.x.dtype)
    x = message.x.to(wide)[edges.src]
    if message.edge is None:
        return x
    edge = edges.rows(message.edge).to(wide)
    edge = edge.view(*edge.shape, *(1,) * (3 - edge.dim()))
    if message.kind == "mul":
        return x * edge
    return torch.relu(x + edge) if message.kind == "add_relu" else x + edge


def _sum(rows: _Rows, rules: Rules) -> Tensor:
    return rows.sum(rows.messages)


def _square(rows: _Rows, rules: Rules) -> Tensor:
    return rows.sum(rows.messages * rows.messages)


def _mean(rows: _Rows, rules: Rules) -> Tensor:
    return _sum(rows, rules) / rows.degree


def _var(rows: _Rows, rules: Rules) -> Tensor:
    return variance(_sum(rows, rules), _square(rows, rules), rows.degree)


def _std(rows: _Rows, rules: Rules) -> Tensor:
    return deviation(_var(rows, rules))


def variance(total: Tensor, square: Tensor, degree: Tensor) -> Tensor:
    """Mean of squares less the square of the mean, as PyG computes it."""
    mean = total / degree
    return square / degree - mean * mean


def deviation(var: Tensor) -> Tensor:
    """Square root of a variance, 0 up to ``STD_FLOOR``."""
    out = var.clamp(min=STD_FLOOR).sqrt()
    return out.masked_fill(out <= math.sqrt(STD_FLOOR), 0.0)


def _mul(rows: _Rows, rules: Rules) -> Tensor:
    m = rows.messages
    ones = m.new_ones(rows.num_rows, *m.shape[1:])
    return ones.scatter_reduce(0, rows.places(m), m, "prod", include_self=True)


def _extreme(largest: bool) -> Callable[[_Rows, Rules], Tensor]:
    how, worst = ("amax", -math.inf) if largest else ("amin", math.inf)

    def reduce(rows: _Rows, rules: Rules) -> Tensor:
        m = rows.messages.to(rows.dtype).to(rows.messages.dtype)  # 16-bit messages are compared
        if not rules.nan_wins:
            m = m.masked_fill(m.isnan(), worst)
        index = rows.places(m)
        zeros = m.new_zeros(rows.num_rows, *m.shape[1:])
        if rules.first:
            with torch.no_grad():
                best = zeros.scatter_reduce(0, index, m, how, include_self=False)[rows.dst]
                wins = (m == best) | (m.isnan() & best.isnan())
                if not rules.nan_wins:
                    wins &= m != worst
                count = m.shape[0]
                places = torch.arange(count, device=m.device).view(-1, 1, 1)
                places = torch.where(wins, places, count)
                won = torch.full(zeros.shape, count, device=m.device)
                won = won.scatter_reduce(0, index, places, "amin")
            padded = torch.cat([m, m.new_zeros(1, *m.shape[1:])])
            return padded.gather(0, won)
        out = zeros.scatter_reduce(0, index, m, how, include_self=False)
        return out if rules.nan_wins else out.masked_fill(out == worst, 0.0)

    return reduce


def _softmax(rows: _Rows, rules: Rules) -> Tensor:
    m = rows.messages
    t = rules.temperature
    scaled = m * (t.to(m.dtype).view(-1, *_channels(t, m)) if isinstance(t, Tensor) else t)
    index = rows.places(m)
    top = m.new_zeros(rows.num_rows, *m.shape[1:])
    top = top.scatter_reduce(0, index, scaled.detach(), "amax", include_self=False)
    weights = (scaled - top[rows.dst]).exp()
    total = rows.sum(weights)
    return rows.sum(weights / total[rows.dst] * m)


def _channels(t: Tensor, m: Tensor) -> tuple[int, int]:
    return (1, 1) if t.numel() == 1 else (m.shape[1], m.shape[2])


_REDUCTIONS: dict[str, Callable[[_Rows, Rules], Tensor]] = {
    "sum": _sum,
    "mean": _mean,
    "square": _square,
    "var": _var,
    "std": _std,
    "max": _extreme(True),
    "min": _extreme(False),
    "mul": _mul,
    "softmax": _softmax,
}

r"""Aggregation of messages at destinations: several reductions in one pass, nothing edge-wise kept.

Of every destination :math:`i`, over its in-edges :math:`e = (j \to i)` with messages
:math:`m_e` (the source's row, or that row times or plus a value of the edge), :func:`aggregate`
takes sums, means, extremes, products, variances, deviations, softmax-weighted sums and power
means. The formulas and corner cases are those of ``torch_geometric.nn.aggr``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.ops.attention_checks import check_graph
from gnn_backend.ops.operands import check_same_dtype, check_table, choice
from gnn_backend.ops.reduced_messages import reduce_messages, with_heads
from gnn_backend.ops.reference.aggregation import Rules
from gnn_backend.runtime.aggregation import Message

REDUCTIONS = ("sum", "mean", "max", "min", "mul", "var", "std", "softmax", "powermean")
MESSAGES = ("copy", "mul", "add", "add_relu")
_ALIASES = {"add": "sum"}
POWER_RANGE = (1e-4, 100.0)  # what power means clamp to, as PyG's does by default


def aggregate(
    graph: Graph,
    x: Tensor,
    reduce: str | Sequence[str],
    *,
    edge: Tensor | None = None,
    message: str = "copy",
    ties: str = "even",
    nan: str = "propagate",
    temperature: Tensor | float | None = None,
    power: Tensor | float | None = None,
) -> Any:
    r"""Reduce messages at destinations, by one reduction or by several in one pass.

    .. math:: y_i = \mathrm{reduce}_{e = (j \to i)} \; m_e

    Parameters
    ----------
    graph : Graph
        Edges source j -> destination i.
    x : Tensor [num_src, *]
        Floating point.
    reduce : str or sequence of str
        ``sum`` (or ``add``), ``mean``, ``max``, ``min``, ``mul`` (product), ``var`` (mean of
        squares less squared mean), ``std`` (its square root; 0, without gradient, up to a variance
        of 1e-5), ``softmax`` (weighted sum, weights the softmax of ``temperature * m`` over the
        row, channel by channel) and ``powermean`` (of messages clamped to 1e-4 .. 100; plain mean
        if ``power`` is the number 1).
    edge : Tensor [E, ...], optional
        In the caller's edge order, with the trailing shape of ``x`` or the leading part of it
        (further dimensions may be 1): [E] or [E, 1] with x [N, D]; [E, H] or [E, H, 1] with
        x [N, H, D].
    message : {"copy", "mul", "add", "add_relu"}
        ``x_j``, ``x_j * edge``, ``x_j + edge``, ``relu(x_j + edge)``.
    ties : {"even", "first"}
        Of the gradient of an extreme: equal messages share it evenly, as in
        ``torch.scatter_reduce`` (where an extreme of exactly 0 shares it with the initial 0, which
        gets a part that nobody sees), or the first edge of the row gets it all, as in DGL and
        torch_scatter.
    nan : {"propagate", "skip"}
        Extremes of a row with a NaN are NaN, as in torch, or a NaN never wins (and where nothing
        does, nor is above -inf, for min below inf, the result is 0), as in DGL and torch_scatter.
    temperature : float or Tensor, optional
        Of ``softmax``, by default 1; a tensor broadcasts to the trailing shape of ``x`` and gets a
        gradient.
    power : float or Tensor, optional
        Of ``powermean``, by default 1; a tensor as for ``temperature``.

    Returns
    -------
    Tensor [num_dst, *], or a tuple of them
        One for each name, in the dtype of ``x``; 16-bit values are reduced in float32. Rows
        without edges are 0, of ``mul`` 1.

    Raises
    ------
    InvalidArgument
        Names, shapes, dtypes or devices do not fit.

    Notes
    -----
    No atomics are used: equal inputs give equal bits, backward too. A power mean of another
    power than 1 makes a pass of its own, and of messages other than ``copy`` it stores them. Where
    there is no kernel, plain torch computes the same; second derivatives go through it as well.
    """
    names = _names(reduce)
    check_graph(graph)
    choice("message", message, MESSAGES)
    choice("ties", ties, ("even", "first"))
    choice("nan", nan, ("propagate", "skip"))
    table = check_table("x", x, graph.num_src, graph.device)
    given = _checked_edge(graph, table, edge, message)
    heat = _number("temperature", temperature, table)
    exponent = _number("power", power, table)
    rules = Rules(ties == "first", nan == "propagate", heat)
    shaped = Message(message, table, given)
    flat = table.dim() in (2, 3)
    if not flat:
        heads = 1
        if given is not None and given.dim() < table.dim():
            heads = math.prod(table.shape[1 : given.dim()])
        shaped = Message(message, _three(table, heads), _edge_as(given, table, heads))
    if len(names) == 1 and names[0] != "powermean":
        out = tuple(reduce_messages(graph, shaped, names, rules).values())
    else:
        out = _several(graph, shaped, names, rules, exponent)
    if not flat:
        out = tuple(value.reshape(graph.num_dst, *table.shape[1:]) for value in out)
    return out[0] if isinstance(reduce, str) else out


def _several(
    graph: Graph, message: Message, names: tuple[str, ...], rules: Rules, power: Tensor | float
) -> tuple[Tensor, ...]:
    """Reductions that may be named twice, power means among them."""
    plain = isinstance(power, float) and power == 1.0
    own = {"powermean": "mean" if plain else ""}
    wanted = tuple(dict.fromkeys(n for n in (own.get(n, n) for n in names) if n))
    found = reduce_messages(graph, message, wanted, rules) if wanted else {}
    return tuple(
        _powermean(graph, message, power)
        if name == "powermean" and not plain
        else found[own.get(name, name)]
        for name in names
    )


def spmm(
    graph: Graph, x: Tensor, edge_weight: Tensor | None = None, *, reduce: str = "sum"
) -> Tensor:
    """Weighted sum, mean, largest or smallest of the sources' rows, with gradients.

    Parameters
    ----------
    graph : Graph
    x : Tensor [num_src, *]
    edge_weight : Tensor [E] or [E, H], optional
        As ``edge`` of :func:`aggregate`.
    reduce : str
        As there.

    Returns
    -------
    Tensor [num_dst, *]

    Raises
    ------
    InvalidArgument
        Names, shapes, dtypes or devices do not fit.
    """
    message = "copy" if edge_weight is None else "mul"
    out: Tensor = aggregate(graph, x, reduce, edge=edge_weight, message=message)
    return out


def _names(reduce: str | Sequence[str]) -> tuple[str, ...]:
    """The reductions asked for, known ones under their first name."""
    given = (reduce,) if isinstance(reduce, str) else tuple(reduce)
    if not given:
        raise invalid("reduce", "empty", "no names", f"some of {', '.join(REDUCTIONS)}")
    names = tuple(_ALIASES.get(name, name) for name in given)
    for name in names:
        choice("reduce", name, REDUCTIONS)
    return names


def _checked_edge(graph: Graph, x: Tensor, edge: Tensor | None, message: str) -> Tensor | None:
    """The edges' operand without its trailing ones, if the message has one."""
    if message == "copy":
        if edge is not None:
            raise invalid("edge", "unused", "a tensor with message 'copy'", "None",
                          "Name the message: mul, add or add_relu")  # fmt: skip
        return None
    table = check_table("edge", edge, graph.num_edges, graph.device)
    check_same_dtype(x, table, "x, edge")
    if table.shape[1:] == x.shape[1:]:
        return table
    shape = list(table.shape)
    while len(shape) > 1 and shape[-1] == 1 and tuple(shape[1:]) != tuple(x.shape[1 : len(shape)]):
        shape.pop()
    if tuple(shape[1:]) != tuple(x.shape[1 : len(shape)]):
        raise invalid("edge", "wrong shape", tuple(table.shape),
                      f"[{graph.num_edges}] and leading sizes of {tuple(x.shape[1:])}")  # fmt: skip
    return table.reshape(shape)


def _three(table: Tensor, heads: int) -> Tensor:
    rows, width = table.shape[0], math.prod(table.shape[1:])
    return table.reshape(rows, heads, width // heads if heads else 0)


def _edge_as(edge: Tensor | None, x: Tensor, heads: int) -> Tensor | None:
    """[E], [E, H] or [E, H, D]."""
    if edge is None or edge.dim() == 1:
        return edge
    return _three(edge, 1) if edge.dim() == x.dim() else edge.reshape(edge.shape[0], heads)


def _number(name: str, value: Tensor | float | None, x: Tensor) -> Tensor | float:
    """A number, or a tensor [1] or [width]."""
    if value is None:
        return 1.0
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise invalid(name, "wrong type", type(value).__name__, "a number or a tensor")
        return float(value)
    if not value.is_floating_point() or value.device != x.device:
        raise invalid(name, "wrong dtype or device", f"{value.dtype} on {value.device}",
                      f"floating point on {x.device}")  # fmt: skip
    if value.numel() == 1:
        return value.reshape(1)
    try:
        return value.expand(x.shape[1:]).reshape(-1)
    except RuntimeError:
        raise invalid(name, "wrong shape", tuple(value.shape),
                      f"one value, or to broadcast to {tuple(x.shape[1:])}") from None  # fmt: skip


def _powermean(graph: Graph, message: Message, power: Tensor | float) -> Tensor:
    """Power mean of clamped messages; ``copy`` is raised node by node."""
    dtype, shape = message.x.dtype, (graph.num_dst, *message.x.shape[1:])
    if message.kind != "copy":  # raised edge by edge, so that each edge has a row of its own
        message = _edge_rows(graph, with_heads(message))
        graph = _own_rows(graph)
    p = power
    if isinstance(p, Tensor):
        p = p.view(()) if p.numel() == 1 else p.view(message.x.shape[1:])
    raised = message.x.clamp(*POWER_RANGE).pow(p).to(dtype)
    mean = reduce_messages(graph, Message("copy", raised, None), ("mean",), Rules())["mean"]
    return mean.clamp(*POWER_RANGE).pow(1.0 / p).to(dtype).view(shape)


def _edge_rows(graph: Graph, message: Message) -> Message:
    """Messages as the rows of sources that have one edge each, in ``by_dst`` order."""
    from gnn_backend.ops.reference.aggregation import messages
    from gnn_backend.ops.twins import Edges

    rows = messages(Edges.of(graph), message).to(message.x.dtype)
    return Message("copy", rows, None)


def _own_rows(graph: Graph) -> Graph:
    """The graph with a source of its own for every edge, in ``by_dst`` order."""
    key = "own rows"
    found = graph.plans.get(key)
    if found is None:
        sources = torch.arange(graph.num_edges, dtype=torch.int32, device=graph.device)
        found = Graph.from_csr(graph.by_dst.indptr, sources, graph.num_edges)
        graph.plans[key] = found
    return found  # type: ignore[no-any-return]

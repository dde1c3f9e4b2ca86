"""Messages reduced at destinations."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.ops.reference.broadcast import accumulator, binary

REDUCTIONS = ("sum", "mean", "max", "min")


def gspmm(
    graph: Graph,
    op: str,
    reduce: str,
    u: Tensor | None,
    e: Tensor | None,
    *,
    arguments: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Combine source and edge features on each edge, and reduce them at the destination.

    Parameters
    ----------
    graph : Graph
    op : {"add", "sub", "mul", "div", "copy_lhs", "copy_rhs"}
        The left-hand side is the source's row of ``u``, the right-hand side the edge's of ``e``.
    reduce : {"sum", "mean", "max", "min"}
    u : Tensor [num_src, *] or None
    e : Tensor [E, *] or None
    arguments : bool
        Whether max and min also give what won.

    Returns
    -------
    Tensor [num_dst, *]
        A destination without in-edges has 0, or, if there are edges at all, -inf for max and inf
        for min, which DGL takes for "none".
    Tensor [num_dst, *] or None, int64
        For max and min with ``u``: the source that won; of equal ones that of the smallest edge id;
        0 where nothing is above -inf (below inf for min). A NaN never wins.
    Tensor [num_dst, *] or None, int64
        For max and min with ``e``: the edge that won, by the same rule.

    Raises
    ------
    InvalidArgument
        An unknown operation or reduction, or shapes that do not fit.
    """
    if reduce not in REDUCTIONS:
        raise invalid("reduce", "unknown", repr(reduce), f"one of {', '.join(REDUCTIONS)}")
    csr = graph.by_dst
    rows = expand_rows(csr.indptr, graph.num_edges).long()
    ids = csr.edge_ids
    lhs = None if op == "copy_rhs" or u is None else u[csr.indices.long()]
    rhs = None if op == "copy_lhs" or e is None else (e if ids is None else e[ids.long()])
    messages = binary(op, lhs, rhs)
    shape = (graph.num_dst, *messages.shape[1:])
    if reduce in ("sum", "mean"):
        wide = accumulator(messages.dtype)
        out = torch.zeros(shape, dtype=wide, device=messages.device)
        out.index_add_(0, rows, messages.to(wide))
        if reduce == "mean":
            degree = csr.indptr.diff().clamp(min=1).to(wide)
            out /= degree.view(-1, *[1] * (out.dim() - 1))
        return out.to(messages.dtype), None, None
    if graph.num_edges == 0:
        out = torch.zeros(shape, dtype=messages.dtype, device=messages.device)
        arg = torch.zeros(shape, dtype=torch.int64, device=messages.device)
        if not arguments:
            return out, None, None
        return out, arg if lhs is not None else None, arg.clone() if rhs is not None else None
    out, won, found = extreme(messages, rows, shape, reduce)
    if not arguments:
        return out, None, None
    sources = csr.indices.long()[won]
    edges = won if ids is None else ids.long()[won]
    arg_u = torch.where(found, sources, 0) if lhs is not None else None
    arg_e = torch.where(found, edges, 0) if rhs is not None else None
    return out, arg_u, arg_e


def extreme(
    messages: Tensor, rows: Tensor, shape: tuple[int, ...], reduce: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Largest or smallest message of each row, the first position that has it, and whether any has.

    As in DGL a NaN never wins, and nothing does that is not above -inf (below inf for min).
    """
    flat = messages.reshape(messages.shape[0], -1)
    none = float("-inf") if reduce == "max" else float("inf")
    flat = torch.where(flat.isnan(), none, flat)
    out = torch.full((shape[0], flat.shape[1]), none, dtype=flat.dtype, device=flat.device)
    index = rows[:, None].expand_as(flat)
    out.scatter_reduce_(0, index, flat, "amax" if reduce == "max" else "amin")
    wins = (flat == out[rows]) & (flat != none)
    count = flat.shape[0]
    places = torch.arange(count, device=flat.device)[:, None].expand_as(flat)
    won = torch.full(out.shape, count, device=flat.device)
    won.scatter_reduce_(0, index, torch.where(wins, places, count), "amin")
    found = won < count
    won = torch.where(found, won, 0)
    return out.reshape(shape), won.reshape(shape), found.reshape(shape)

"""Principal neighbourhood aggregation (Corso et al., 2020): messages linear in both ends."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.aggregation import aggregate

#: Reductions that a constant added to all messages of a row shifts in a known way.
SHIFTED = ("sum", "mean", "max", "min", "var", "std")


def shifted_reductions(
    graph: Graph, src: Tensor, dst: Tensor, edge: Tensor | None, names: tuple[str, ...]
) -> tuple[Tensor, ...]:
    r"""Reductions of :math:`m_e = s_j + d_i + e`, in one pass over the neighbours' :math:`s_j + e`.

    Parameters
    ----------
    graph : Graph
    src : Tensor [num_src, T, F]
    dst : Tensor [num_dst, T, F]
    edge : Tensor [E, T, F], optional
    names : tuple of str
        Among ``SHIFTED``.

    Returns
    -------
    tuple of Tensor [num_dst, T, F]
        Rows without edges are 0.
    """
    message = "copy" if edge is None else "add"
    found = aggregate(graph, src, names, edge=edge, message=message)
    degree = graph.by_dst.indptr.diff().to(src.dtype).view(-1, 1, 1)
    shifts = {"sum": degree * dst if "sum" in names else None}
    once = degree.clamp(max=1) * dst if {"mean", "max", "min"} & set(names) else None
    shifts |= dict.fromkeys(("mean", "max", "min"), once)
    results = []
    for name, value in zip(names, found, strict=True):
        shift = shifts.get(name)
        results.append(value if shift is None else value + shift)
    return tuple(results)

"""Principal neighbourhood aggregation (Corso et al., 2020): messages linear in both ends.

A tower's message is one linear map of both ends and the edge. Its part of the destination is the
same for a whole row, so it is added behind the reductions, and of the sources' parts all
reductions of all towers are taken in one pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.layers.normalization import degrees
from gnn_backend.ops.aggregation import aggregate

#: Reductions that a constant added to all messages of a row shifts in a known way.
SHIFTED = ("sum", "mean", "max", "min", "var", "std")


def mapped(x: Tensor, weight: Tensor) -> Tensor:
    """Features by each tower's linear map.

    Parameters
    ----------
    x : Tensor [N, T, F] or [N, F]
        Each tower's own, or the same for all.
    weight : Tensor [T, D, F]

    Returns
    -------
    Tensor [N, T, D]
    """
    if x.dim() == 3:
        return torch.einsum("ntf,tdf->ntd", x, weight)
    return torch.nn.functional.linear(x, weight.flatten(0, 1)).view(-1, *weight.shape[:2])


def shifted_reductions(
    graph: Graph,
    src: Tensor,
    dst: Tensor,
    edge: Tensor | None,
    names: tuple[str, ...],
    *,
    ties: str = "even",
) -> tuple[Tensor, ...]:
    r"""Reductions of :math:`m_e = s_j + d_i + e`, in one pass over the neighbours' :math:`s_j + e`.

    Parameters
    ----------
    graph : Graph
    src : Tensor [num_src, T, F]
    dst : Tensor [num_dst, T, F]
    edge : Tensor [E, T, F], optional
        In the edge order of ``graph``.
    names : tuple of str
        Among ``SHIFTED``.
    ties : {"even", "first"}
        As for :func:`gnn_backend.ops.aggregate`.

    Returns
    -------
    tuple of Tensor [num_dst, T, F]
        Rows without edges are 0.
    """
    message = "copy" if edge is None else "add"
    found = aggregate(graph, src, names, edge=edge, message=message, ties=ties)
    degree = degrees(graph, "dst").to(src.dtype).view(-1, 1, 1)
    shifts = {"sum": degree * dst if "sum" in names else None}
    once = degree.clamp(max=1) * dst if {"mean", "max", "min"} & set(names) else None
    shifts |= dict.fromkeys(("mean", "max", "min"), once)
    results = []
    for name, value in zip(names, found, strict=True):
        shift = shifts.get(name)
        results.append(value if shift is None else value + shift)
    return tuple(results)

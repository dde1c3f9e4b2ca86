"""Layers that aggregate neighbours linearly or by an extreme, for many relations together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.ir.domains import Domain
from gnn_backend.layers.hetero.products import at_pairs, own_rows, spread, typed_rows, weighted
from gnn_backend.layers.hetero.products import with_bias as add_bias
from gnn_backend.layers.hetero.union import Rows, Union
from gnn_backend.ops.aggregation import aggregate

FACTORS = ("sum", "mean", "left", "both", "symmetric")


class Parameters(NamedTuple):
    """What each relation's layer has; [R, ...] each, or None.

    Attributes
    ----------
    neighbours : Tensor [R, F, D]
        Maps what is aggregated.
    own : Tensor [R, F_dst, D] or None
        Maps the destination's own row, which is added.
    bias : Tensor [R, D] or None
    before, before_bias : Tensor [R, F, F], [R, F] or None
        Map sources ahead of the aggregation, with a relu behind.
    """

    neighbours: Tensor
    own: Tensor | None = None
    bias: Tensor | None = None
    before: Tensor | None = None
    before_bias: Tensor | None = None


def hetero_aggregate(
    union: Union,
    rows: Rows,
    x_src: Tensor,
    x_dst: Tensor,
    parameters: Parameters,
    reduce: str,
    *,
    first_tie: bool,
) -> Tensor:
    r"""Neighbours aggregated within each relation, mapped by its weight, and what is added.

    .. math:: y_{r,i} = \Big(\mathrm{reduce}_{e = (j \to i) \in r} \; x_j\Big) W_r + x_i V_r + b_r

    Parameters
    ----------
    union : Union
    rows : Rows
        Where results go: for each relation, or summed over relations.
    x_src, x_dst : Tensor [num_src, F], [num_dst, F_dst]
        The tables one after the other.
    parameters : Parameters
    reduce : str
        ``sum``, ``mean``, ``left`` (divided by the source's out-degree), ``both`` (by the root
        of out-degree times in-degree), ``symmetric`` (by the root of both ends' in-degrees), or
        ``max``, ``min``.
    first_tie : bool
        Rules of extremes, of DGL or of PyG; see :func:`gnn_backend.ops.aggregate`.

    Returns
    -------
    Tensor [rows, D]
    """
    p = parameters
    linear = reduce in FACTORS
    if linear and p.before is None:
        # A sum commutes with its map, and takes the shortest way: straight to the result's rows.
        y = at_pairs(union, Domain.SRC_PAIR, x_src, p.neighbours)
        factors = edge_factors(union, rows, reduce, x_src.dtype)
        out = weighted(rows.graph(Domain.EDGE, Domain.SRC_PAIR), y, factors)
    else:
        source, table = Domain.SRC, x_src
        if p.before is not None:
            source = Domain.SRC_PAIR
            table = torch.relu(at_pairs(union, source, x_src, p.before, p.before_bias))
        graph = union.graph(Domain.EDGE, source, Domain.DST_PAIR)
        ties, nan = ("first", "skip") if first_tie else ("even", "propagate")
        found: Tensor = aggregate(graph, table, reduce, ties=ties, nan=nan)
        mapped = typed_rows(found, p.neighbours, union.bounds(Domain.DST_PAIR))
        out = spread(union, rows, mapped)
    if p.own is not None:
        out = out + own_rows(rows, x_dst, p.own)
    return add_bias(rows, out, p.bias)


def edge_factors(union: Union, rows: Rows, reduce: str, dtype: torch.dtype) -> Tensor | None:
    """What the edges of a linear reduction count, [E]; None: 1."""
    share = rows.scale(Domain.EDGE, torch.float64)
    if reduce == "sum" and share is None:
        return None

    def make() -> Tensor:
        factors = {
            "sum": lambda: torch.ones((), dtype=torch.float64, device=union.device),
            "mean": lambda: union.degree_at_edges(Domain.DST_PAIR).reciprocal(),
            "left": lambda: union.degree_at_edges(Domain.SRC_PAIR).reciprocal(),
            "both": lambda: (
                union.degree_at_edges(Domain.SRC_PAIR) * union.degree_at_edges(Domain.DST_PAIR)
            ).rsqrt(),
            "symmetric": union.symmetric,
        }[reduce]()
        return (factors if share is None else factors * share).to(dtype)

    return union.keep(("factors", reduce, dtype, rows._key), make)

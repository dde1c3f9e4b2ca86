"""RGCN on node numbers instead of features: messages are rows of the relations' weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.kept import kept_beside
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ops.aggregation import aggregate


class _Lookups(NamedTuple):
    """Edges from the rows [R * I] of all weights.

    Attributes
    ----------
    messages : Graph
        To the destinations, or for a maximum to their pairs with relations.
    shares : Tensor [E] or None
        What each counts in a mean.
    pairs : Graph or None
        From pairs to destinations.
    """

    messages: Graph
    shares: Tensor | None = None
    pairs: Graph | None = None


def rgcn_of_numbers(
    relations: Relations, numbers: Tensor | None, weight: Tensor, reduce: str
) -> Tensor:
    r"""Neighbours' rows of the relations' weights, aggregated in each relation and summed.

    .. math:: y_i = \sum_r \mathrm{reduce}_{e = (j \to i) \in r} \; W_r[n_j]

    which is RGCN on one-hot features. What numbers and edges make together is kept with the graph.

    Parameters
    ----------
    relations : Relations
    numbers : integer Tensor [num_src] or None
        Rows of the weights, from the end if negative; None: node j has row j.
    weight : Tensor [R, I, O]
    reduce : {"sum", "mean", "max"}

    Returns
    -------
    Tensor [num_dst, O]

    Raises
    ------
    InvalidArgument
        A number is out of range.
    """
    inner = weight.shape[1]
    lookups = kept_beside(
        relations.graph, "node numbers", [numbers, relations.edge_types],
        (inner, reduce, weight.dtype),
        lambda: _lookups(relations, numbers, inner, reduce, weight.dtype),
    )  # fmt: skip
    table = weight.flatten(0, 1)
    out: Tensor
    if lookups.pairs is not None:
        return aggregate(lookups.pairs, aggregate(lookups.messages, table, reduce), "sum")  # type: ignore[no-any-return]
    message = "copy" if lookups.shares is None else "mul"
    out = aggregate(lookups.messages, table, "sum", edge=lookups.shares, message=message)
    return out


def _lookups(
    relations: Relations, numbers: Tensor | None, inner: int, reduce: str, dtype: torch.dtype
) -> _Lookups:
    # Tensors born in inference mode could not take part in a later training step.
    with torch.inference_mode(False), torch.no_grad():
        src, dst, types = (
            _index(relations, end) for end in (Domain.SRC, Domain.DST, Domain.EDGE_TYPE)
        )
        found = src if numbers is None else numbers.long()[src]
        found = torch.where(found < 0, found + inner, found)
        if bool(((found < 0) | (found >= inner)).any()):
            got = f"{int(found.min())}..{int(found.max())}"
            raise invalid("x", "a node number is out of range", got, f"0..{inner - 1}")
        rows, count = types * inner + found, relations.num_edge_types * inner
        if reduce == "max":
            pair = _index(relations, Domain.DST_PAIR)
            num_pairs, num_dst = relations.num(Domain.DST_PAIR), relations.num(Domain.DST)
            ends = relations.index(Domain.DST_PAIR, Domain.DST)
            assert ends is not None
            numbered = torch.arange(num_pairs, device=ends.device)
            return _Lookups(
                Graph.from_edge_index(torch.stack((rows, pair)), count, num_pairs),
                pairs=Graph.from_edge_index(
                    torch.stack((numbered, ends.long())), num_pairs, num_dst
                ),
            )
        shares = None
        if reduce == "mean":
            degree = relations.degree(Domain.DST_PAIR).double()
            shares = degree[_index(relations, Domain.DST_PAIR)].reciprocal().to(dtype)
        messages = Graph.from_edge_index(torch.stack((rows, dst)), count, relations.num(Domain.DST))
        return _Lookups(messages, shares)


def _index(relations: Relations, end: Domain) -> Tensor:
    """Number of each edge's ``end``, int64 [E] in the caller's order."""
    found = relations.index(Domain.EDGE, end)
    if found is None:
        return torch.arange(relations.graph.num_edges, device=relations.device)
    return found.long()

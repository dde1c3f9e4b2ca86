"""Adjacencies with a factor for each node, and optionally a weight for each edge.

The factors of normalised adjacencies, as degrees to some power, multiply node tables before and
behind the aggregation, so that no edge-wise tensor is made of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.aggregation import aggregate


class ScaledAdjacency(NamedTuple):
    r"""The matrix :math:`D_{dst} A D_{src}`, in which :math:`A` holds the edges' weights.

    Attributes
    ----------
    graph : Graph
    weight : Tensor [E] or None
        In the edge order of ``graph``; None: all are 1.
    src, dst : Tensor [num_src], [num_dst] or None
        Factors of the nodes at both ends; None: all are 1.
    """

    graph: Graph
    weight: Tensor | None = None
    src: Tensor | None = None
    dst: Tensor | None = None

    def neighbours(self, x: Tensor, reduce: str = "sum") -> Tensor:
        """Weighted sum (or another reduction) of the neighbours, without the factors.

        Parameters
        ----------
        x : Tensor [num_src, *]
        reduce : str
            As for :func:`gnn_backend.ops.aggregate`, whose rules of DGL hold: the first of equal
            extremes gets the gradient, and a NaN is none.

        Returns
        -------
        Tensor [num_dst, *]

        Raises
        ------
        InvalidArgument
            Shapes, dtypes or devices do not fit the graph.
        """
        message = "copy" if self.weight is None else "mul"
        out: Tensor = aggregate(
            self.graph, x, reduce, edge=self.weight, message=message, ties="first", nan="skip"
        )
        return out

    def times(self, x: Tensor, added: Tensor | None = None, *, reduce: str = "sum") -> Tensor:
        """The product with a table of the sources.

        Parameters
        ----------
        x : Tensor [num_src, *]
        added : Tensor, optional
            What is added, of a shape that broadcasts.
        reduce : {"sum", "mean"}
            A mean divides by the number of edges, too.

        Returns
        -------
        Tensor [num_dst, *]
        """
        return scaled(self.neighbours(scaled(x, self.src), reduce), self.dst, added)


def scaled(x: Tensor, factors: Tensor | None, added: Tensor | None = None) -> Tensor:
    """Rows times a number each, plus something, in one pass.

    Parameters
    ----------
    x : Tensor [N, *]
    factors : Tensor [N] or None
        In the dtype of ``x``.
    added : Tensor, optional
        Of a shape that broadcasts.
    """
    if factors is None:
        return x if added is None else x + added
    column = factors.view(-1, *(1,) * (x.dim() - 1))
    return x * column if added is None else torch.addcmul(added, x, column)


def streamed(graph: Graph, weight: Tensor) -> ScaledAdjacency:
    """Put weights in the order in which destinations read them.

    Parameters
    ----------
    graph : Graph
    weight : Tensor [E]
        In the edge order of ``graph``.

    Returns
    -------
    ScaledAdjacency
        On a graph of the same edges that are numbered in ``by_dst`` order, so that a kernel reads
        its weights one after the other.
    """
    ids = graph.by_dst.edge_ids
    if ids is None:
        return ScaledAdjacency(graph, weight)
    return ScaledAdjacency(_numbered(graph), weight[ids.long()])


def _numbered(graph: Graph) -> Graph:
    """The same edges numbered in ``by_dst`` order; kept with the graph."""
    found = graph.plans.get("by_dst order")
    if found is None:
        csr = graph.by_dst
        found = graph.plans["by_dst order"] = Graph.from_csr(csr.indptr, csr.indices, graph.num_src)
    return found  # type: ignore[no-any-return]

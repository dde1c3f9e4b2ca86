"""Softmax-weighted sums in plain differentiable torch.

The oracle of the kernels' tests, in any floating dtype, and the graph of second derivatives.
Edge-wise values are stored here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.runtime.random import Dropout, philox_uniform


class Edges(NamedTuple):
    """Both ends of every edge in ``by_dst`` order, and its number in the caller's (None: same)."""

    src: Tensor
    dst: Tensor
    ids: Tensor | None

    @classmethod
    def of(cls, graph: Graph) -> Edges:
        by_dst = graph.by_dst
        ids = None if by_dst.edge_ids is None else by_dst.edge_ids.long()
        rows = expand_rows(by_dst.indptr, graph.num_edges).long()
        return cls(by_dst.indices.long(), rows, ids)

    def rows(self, table: Tensor) -> Tensor:
        """Rows of a table in the caller's order, in ``by_dst`` order."""
        return table if self.ids is None else table[self.ids]

    def to_caller(self, table: Tensor) -> Tensor:
        """The way back of :meth:`rows`."""
        if self.ids is None:
            return table
        return torch.empty_like(table).index_copy(0, self.ids, table)


class Attended(NamedTuple):
    """Results of attention: sums of values and of edge features, and weights [E, H]."""

    out: Tensor
    out_edge: Tensor | None
    attention: Tensor


def softmax_attention_twin(
    score: Callable[[Edges, Mapping[str, Tensor], Mapping[str, float]], Tensor],
    value: str,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    dropout: Dropout | None = None,
    *,
    aggregate: bool = False,
) -> Attended:
    """Attention of any score: what ``softmax_forward`` and ``softmax_weights`` compute.

    Parameters
    ----------
    score, value
        Of the functor.
    graph : Graph
    operands : mapping of str to Tensor
        Those of the functor, optional ones where given.
    scalars : mapping of str to float
    dropout : Dropout, optional
        Weights are dropped by its mask, and the others scaled by 1 / (1 - p).
    aggregate : bool
        Sum the edge features as well.
    """
    edges = Edges.of(graph)
    weights = _softmax(edges, graph.num_dst, score(edges, operands, scalars))
    if dropout is not None:
        weights = weights * edges.rows(dropout_scale(graph, weights, dropout))
    out = _weighted_sum(edges, graph.num_dst, weights, operands[value][edges.src])
    out_edge = None
    if aggregate:
        features = edges.rows(operands["edge_features"])
        features = features.unsqueeze(1) if features.dim() == 2 else features
        out_edge = _weighted_sum(edges, graph.num_dst, weights, features)
    return Attended(out, out_edge, edges.to_caller(weights))


def dropout_scale(graph: Graph, like: Tensor, dropout: Dropout) -> Tensor:
    """What weights [E, H] are multiplied with: 0 or 1 / (1 - p), in the caller's edge order."""
    numbers = torch.arange(graph.num_edges, device=like.device)
    threshold = torch.tensor(dropout.p, dtype=torch.float32, device=like.device)
    kept = philox_uniform(numbers, like.shape[1], dropout) >= threshold
    return kept.to(like.dtype) * dropout.scale


def softmax_aggregate(graph: Graph, logits: Tensor, values: Tensor) -> Tensor:
    """Softmax of logits [E, H] over the in-edges of each destination, weighted sum of values.

    Edges are in ``by_dst`` order; values [E, H, D]. Rows without in-edges are 0.
    """
    edges = Edges.of(graph)
    weights = _softmax(edges, graph.num_dst, logits)
    return _weighted_sum(edges, graph.num_dst, weights, values)


def _softmax(edges: Edges, num_dst: int, logits: Tensor) -> Tensor:
    index = edges.dst[:, None].expand(-1, logits.shape[1])
    top = logits.detach().new_full((num_dst, logits.shape[1]), float("-inf"))
    top = top.scatter_reduce(0, index, logits.detach(), "amax", include_self=True)
    weights = (logits - top[edges.dst]).exp()
    total = weights.new_zeros(num_dst, logits.shape[1]).index_add(0, edges.dst, weights)
    return weights / total[edges.dst]


def _weighted_sum(edges: Edges, num_dst: int, weights: Tensor, values: Tensor) -> Tensor:
    """Sum over in-edges of weights [E, H] times values [E, H or 1, D]."""
    messages = weights.unsqueeze(-1) * values
    return values.new_zeros(num_dst, *messages.shape[1:]).index_add(0, edges.dst, messages)

"""Further forms of the relational layers that hosts have, as programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from gnn_backend.graph.relations import Relations
from gnn_backend.ir.trace import combine
from gnn_backend.program import (
    Edge,
    Symbol,
    Table,
    dot,
    flat,
    heads,
    leaky_relu,
    linear,
    program,
    reshape,
    softmax,
    split,
)


@program
def rgcn_mean(edge: Edge, x: Table, weight: Table) -> Symbol:
    """Sum over relations of the mean of ``x[src]`` over a relation's in-edges, times its weight.

    As :func:`gnn_backend.layers.relational.rgcn.rgcn` otherwise.
    """
    return edge.sum(linear(edge.mean(x[edge.src], within=edge.type), weight[edge.type]))


@program
def rgcn_max(edge: Edge, x: Table, weight: Table) -> Symbol:
    """The same of the largest values over a relation's in-edges; relations without any give 0."""
    return edge.sum(linear(edge.max(x[edge.src], within=edge.type), weight[edge.type]))


@program
def by_node_type(edge: Edge, x: Table, weight: Table) -> Symbol:
    """Destinations' rows [num_dst, I] times the weight of their type [node types, I, O]."""
    return linear(x[edge.node], weight[edge.node.type])


@program
def hgt_attention(
    edge: Edge,
    query: Table,
    key: Table,
    value: Table,
    att: Table,
    message: Table,
    prior: Table,
    num_heads: int = 1,
) -> Symbol:
    """HGT's attention between nodes that are mapped already, each with its type's weights.

    Sum over in-edges of ``softmax(<k att, q> prior / sqrt(D)) * (v message)``, heads flat. query
    [num_dst, H * D]; key, value [num_src, H * D]; att, message [edge types, H, D, D]; prior
    [edge types, H]. Returns [num_dst, H * D].
    """
    q = heads(query[edge.dst], num_heads)
    k, v = (heads(table[edge.src], num_heads) for table in (key, value))
    score = dot(linear(k, att[edge.type]), q) * prior[edge.type] / q.shape[-1] ** 0.5
    return flat(edge.sum(softmax(score) * linear(v, message[edge.type])))


@dataclass(frozen=True)
class Attention:
    """A form of relational attention (Busbridge et al., 2019).

    Attributes
    ----------
    heads, dim : int
        Heads, and logits a head.
    slope : float
    additive : bool
        Logits ``leaky_relu(q + k)``, else ``q * k``.
    within : bool
        Softmax over the in-edges of one relation, else over all.
    term : bool
        Logits have a further term, a number an edge and logit.
    kept : bool
        Weights are multiplied by a number an edge and logit, that of dropout.
    raised : bool
        1 is added to every weight that is not 0.
    plain : bool
        The sum of the sources' rows without weights is wanted as well.
    returns : bool
        The weights are wanted as well.
    """

    heads: int
    dim: int = 1
    slope: float = 0.2
    additive: bool = True
    within: bool = False
    term: bool = False
    kept: bool = False
    raised: bool = False
    plain: bool = False
    returns: bool = False


class Attended(NamedTuple):
    """What attention gives.

    Attributes
    ----------
    messages : tuple of Tensor [num_dst, H, D]
        For each logit of a head.
    plain : Tensor [num_dst, H, D] or None
    weights : Tensor [E, H * dim] or None
        After the softmax alone.
    """

    messages: tuple[Tensor, ...]
    plain: Tensor | None
    weights: Tensor | None


@lru_cache(maxsize=256)
def attention(form: Attention) -> Callable[..., Attended]:
    """The program of a form: called with relations and tensors.

    They are x [N, I] and weight [T, I, H * D] (or by blocks [N, B, I / B] and
    [T, B, I / B, H * D / B]), query and key [H * D, H * dim], and where the form has them term and
    kept [E, H * dim].
    """

    @program
    def relational_attention(
        edge: Edge,
        x: Table,
        weight: Table,
        query: Table,
        key: Table,
        term: Table | None = None,
        kept: Table | None = None,
    ) -> tuple[Symbol, ...]:
        near, far = (flat(linear(x[end], weight[edge.type])) for end in (edge.src, edge.dst))
        q, k = linear(far, query), linear(near, key)
        if form.additive:
            logit = q + k if term is None else q + k + term[edge]
            logit = leaky_relu(logit, form.slope)
        else:
            logit = q * k if term is None else q * k * term[edge]
        alpha = softmax(logit, within=edge.type if form.within else None)
        weights = alpha if kept is None else alpha * kept[edge]
        weights = weights + combine("greater", weights, 0.0) if form.raised else weights
        z = heads(near, form.heads)
        by_logit = split(reshape(weights, (form.heads, form.dim)), form.dim)
        found = [edge.sum(reshape(w, (form.heads,)) * z) for w in by_logit]
        found += [edge.sum(z)] if form.plain else []
        return (*found, alpha) if form.returns else tuple(found)

    def run(relations: Relations, **tensors: Tensor) -> Attended:
        found = list(relational_attention(relations, **tensors))
        weights = found.pop() if form.returns else None
        plain = found.pop() if form.plain else None
        return Attended(tuple(found), plain, weights)

    return run

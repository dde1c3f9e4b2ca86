"""Attention of the heterogeneous graph transformer."""

from __future__ import annotations

from gnn_backend.program import Edge, Symbol, Table, dot, flat, heads, linear, program, softmax


@program
def hgt(
    edge: Edge,
    x: Table,
    query: Table,
    key: Table,
    value: Table,
    att: Table,
    message: Table,
    prior: Table,
    x_dst: Table | None = None,
    num_heads: int = 1,
) -> Symbol:
    """Sum over in-edges of ``softmax(<k att, q> prior / sqrt(D)) * (v message)``, heads flat.

    q of the destination and k, v of the source are ``x`` times the weight of the node's type. x
    [N, I]; query, key, value [node types, I, H * D]; att, message [edge types, H, D, D]; prior
    [edge types, H]. Destinations are the same nodes as sources, or rows of ``x_dst`` [num_dst, I].
    Returns [num_dst, H * D].
    """
    far = x if x_dst is None else x_dst
    q = heads(linear(far[edge.dst], query[edge.dst.type]), num_heads)
    k = heads(linear(x[edge.src], key[edge.src.type]), num_heads)
    v = heads(linear(x[edge.src], value[edge.src.type]), num_heads)
    score = dot(linear(k, att[edge.type]), q) * prior[edge.type] / q.shape[-1] ** 0.5
    return flat(edge.sum(softmax(score) * linear(v, message[edge.type])))

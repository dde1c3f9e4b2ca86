"""Relational graph attention, with additive logits."""

from __future__ import annotations

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
    softmax,
)


@program
def rgat(
    edge: Edge,
    x: Table,
    weight: Table,
    att_src: Table,
    att_dst: Table,
    num_heads: int = 1,
    slope: float = 0.2,
) -> Symbol:
    """Sum over in-edges of ``softmax(leaky_relu(<att_src, z_src> + <att_dst, z_dst>)) * z_src``.

    z is ``x @ weight[type]`` in heads, the softmax over all in-edges. x [N, I], weight
    [T, I, H * D], att_src, att_dst [T, H, D]. Sources and destinations are the same nodes. Returns
    [N, H * D].
    """
    z_src = heads(linear(x[edge.src], weight[edge.type]), num_heads)
    z_dst = heads(linear(x[edge.dst], weight[edge.type]), num_heads)
    logit = dot(att_src[edge.type], z_src) + dot(att_dst[edge.type], z_dst)
    return flat(edge.sum(softmax(leaky_relu(logit, slope)) * z_src))

"""Relational graph convolution."""

from __future__ import annotations

from gnn_backend.program import Edge, Symbol, Table, linear, program


@program
def rgcn(edge: Edge, x: Table, weight: Table, norm: Table | None = None) -> Symbol:
    """Sum over in-edges of ``norm[e] * x[src] @ weight[type]``.

    x [num_src, I], weight [T, I, O], norm [E] or None for 1; returns [num_dst, O]. Or by blocks: x
    [num_src, B, I], weight [T, B, I, O], [num_dst, B, O].
    """
    message = linear(x[edge.src], weight[edge.type])
    return edge.sum(message if norm is None else message * norm[edge])

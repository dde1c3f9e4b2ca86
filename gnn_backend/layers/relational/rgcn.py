"""Relational graph convolution."""

from __future__ import annotations

from gnn_backend.program import Edge, Symbol, Table, linear, program


@program
def rgcn(edge: Edge, x: Table, weight: Table, norm: Table) -> Symbol:
    """Sum over in-edges of ``norm[e] * x[src] @ weight[type]``.

    x [num_src, I], weight [T, I, O], norm [E]; returns [num_dst, O].
    """
    return edge.sum(linear(x[edge.src], weight[edge.type]) * norm[edge])

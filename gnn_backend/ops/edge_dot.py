"""Dot products of the two ends of every edge, with gradients, without gathering the ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported, invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.ops.attention_checks import check_operands
from gnn_backend.ops.edgewise import gsddmm
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.ops.softmax_attention import refuse_batch
from gnn_backend.ops.spmm import gspmm
from gnn_backend.runtime.launch import numba_edges

_CHUNK = 1 << 22  # numbers gathered at a time where there is no kernel


def edge_dot(graph: Graph, x_src: Tensor, x_dst: Tensor) -> Tensor:
    r"""Dot product of both ends of every edge.

    .. math:: y_{e,h} = \langle x^{src}_{j,h}, x^{dst}_{i,h} \rangle, \quad e = (j \to i)

    Parameters
    ----------
    graph : Graph
    x_src : Tensor [num_src, H, D]
    x_dst : Tensor [num_dst, H, D]

    Returns
    -------
    Tensor [E, H]
        In the caller's edge order and the operands' dtype. Neither it nor its gradients write
        [E, H, D], and equal inputs give equal bits; where there is no kernel torch answers, some
        edges at a time.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit each other or the graph.
    """
    if not isinstance(graph, Graph):
        raise invalid("graph", "not a graph", type(graph).__name__, "a gnn_backend.graph.Graph")
    shapes = {"x_src": (graph.num_src, "H", "D"), "x_dst": (graph.num_dst, "H", "D")}
    check_operands(graph, {"x_src": x_src, "x_dst": x_dst}, shapes, "x_src")
    return _EdgeDot.apply(graph, x_src is x_dst, x_src, x_dst)  # type: ignore[no-any-return]


class _EdgeDot(torch.autograd.Function):
    """``shared``: both ends are one table, whose gradients are added up before that."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, shared: bool, x_src: Tensor, x_dst: Tensor) -> Tensor:
        ctx.graph, ctx.shared = graph, shared
        ctx.save_for_backward(x_src, x_dst)
        return _dots(graph, x_src, x_dst)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None, Tensor | None]:
        refuse_batch(grad)
        x_src, x_dst = ctx.saved_tensors
        *_, of_src, of_dst = ctx.needs_input_grad
        if torch.is_grad_enabled():  # create_graph=True
            return None, None, *_WeightedSums.apply(ctx.graph, grad, x_src, x_dst)
        if ctx.shared:
            total = _weighted_sum(ctx.graph, grad, x_dst, reverse=True)
            total += _weighted_sum(ctx.graph, grad, x_src, reverse=False)
            return None, None, total, None
        return (
            None,
            None,
            _weighted_sum(ctx.graph, grad, x_dst, reverse=True) if of_src else None,
            _weighted_sum(ctx.graph, grad, x_src, reverse=False) if of_dst else None,
        )


class _WeightedSums(torch.autograd.Function):
    """The gradients of :class:`_EdgeDot`; as it is bilinear, theirs are of the same kinds."""

    @staticmethod
    def forward(
        ctx: Any, graph: Graph, grad: Tensor, x_src: Tensor, x_dst: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.graph = graph
        ctx.save_for_backward(grad, x_src, x_dst)
        return (
            _weighted_sum(graph, grad, x_dst, reverse=True),
            _weighted_sum(graph, grad, x_src, reverse=False),
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, to_src: Tensor, to_dst: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        grad, x_src, x_dst = ctx.saved_tensors
        graph = ctx.graph
        return (
            None,
            _dots(graph, to_src, x_dst) + _dots(graph, x_src, to_dst),
            _weighted_sum(graph, grad, to_dst, reverse=True),
            _weighted_sum(graph, grad, to_src, reverse=False),
        )


def _dots(graph: Graph, x_src: Tensor, x_dst: Tensor) -> Tensor:
    try:
        engine = numba_edges(x_src.device, x_src.dtype)
        if engine is not None:
            return engine.edge_dots(FUNCTORS["dot"], graph, x_src, x_dst)
        return gsddmm(graph, "dot", x_src, x_dst, "u", "v").squeeze(-1)
    except Unsupported:
        out = x_src.new_empty(graph.num_edges, x_src.shape[1])
        for ids, src, dst in _chunks(graph, x_src[0].numel() if len(x_src) else 1):
            out[ids] = (x_src[src] * x_dst[dst]).sum(-1)
        return out


def _weighted_sum(graph: Graph, weights: Tensor, table: Tensor, *, reverse: bool) -> Tensor:
    """Sum of the far ends' rows times the weights of the edges, at each source if reversed."""
    try:
        engine = numba_edges(table.device, table.dtype)
        if engine is not None:
            return engine.weighted_sums(graph, weights, table, reverse=reverse)
        weights = weights.contiguous().unsqueeze(-1)
        return gspmm(graph, "mul", "sum", table, weights, reverse=reverse)[0]
    except Unsupported:
        rows = graph.num_src if reverse else graph.num_dst
        wide = torch.promote_types(table.dtype, torch.float32)
        out = table.new_zeros(rows, *table.shape[1:], dtype=wide)
        for ids, src, dst in _chunks(graph, table[0].numel() if len(table) else 1):
            into, other = (src, dst) if reverse else (dst, src)
            out.index_add_(0, into, (weights[ids] * table[other]).to(wide))
        return out.to(table.dtype)


def _chunks(graph: Graph, width: int) -> Any:
    """Caller's numbers, sources and destinations of some edges at a time."""
    by_dst = graph.by_dst
    rows = expand_rows(by_dst.indptr, graph.num_edges).long()
    ids = by_dst.edge_ids
    if ids is None:
        ids = torch.arange(graph.num_edges, device=rows.device)
    count = max(1, _CHUNK // max(width, 1))
    for start in range(0, graph.num_edges, count):
        part = slice(start, start + count)
        yield ids[part].long(), by_dst.indices[part].long(), rows[part]

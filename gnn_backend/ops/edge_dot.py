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
    return _EdgeDot.apply(graph, x_src, x_dst)  # type: ignore[no-any-return]


def node_dot(graphs: tuple[Graph, ...], x: Tensor) -> Tensor:
    """Dot product of both ends of every edge of some graphs of the same nodes.

    Parameters
    ----------
    graphs : tuple of Graph
        One or more, each with N sources and N destinations.
    x : Tensor [N, H, D]

    Returns
    -------
    Tensor [E, H]
        Of all edges, graph after graph, in one tensor; its gradients are added up in one as well.
        Otherwise as :func:`edge_dot`.

    Raises
    ------
    InvalidArgument
        Shapes or devices do not fit the graphs.
    """
    for graph in graphs:
        check_operands(graph, {"x": x}, {"x": (graph.num_src, "H", "D")}, "x")
        if graph.num_dst != graph.num_src:
            raise invalid(
                "graphs", "of two kinds of nodes", graph, "as many sources as destinations"
            )
    return _NodeDot.apply(graphs, x)  # type: ignore[no-any-return]


class _NodeDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graphs: tuple[Graph, ...], x: Tensor) -> Tensor:
        ctx.graphs = graphs
        ctx.save_for_backward(x)
        out = x.new_empty(sum(graph.num_edges for graph in graphs), x.shape[1])
        for graph, part in _by_graph(graphs, out):
            _dots(graph, x, x, part)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Any]:
        refuse_batch(grad)
        (x,) = ctx.saved_tensors
        parts = _by_graph(ctx.graphs, grad)
        if torch.is_grad_enabled():  # create_graph=True
            sums = (_WeightedSums.apply(graph, part, x, x) for graph, part in parts)
            return None, sum(to_src + to_dst for to_src, to_dst in sums)
        (graph, part), *others = parts
        total = _weighted_sum(graph, part, x, reverse=True)
        total += _weighted_sum(graph, part, x, reverse=False)  # not named: two tables at a time
        for graph, part in others:
            total += _weighted_sum(graph, part, x, reverse=True)
            total += _weighted_sum(graph, part, x, reverse=False)
        return None, total


def _by_graph(graphs: tuple[Graph, ...], rows: Tensor) -> list[tuple[Graph, Tensor]]:
    """Each graph with its part of the rows of all edges."""
    return list(zip(graphs, rows.split([graph.num_edges for graph in graphs]), strict=True))


class _EdgeDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, x_src: Tensor, x_dst: Tensor) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(x_src, x_dst)
        return _dots(graph, x_src, x_dst)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        refuse_batch(grad)
        x_src, x_dst = ctx.saved_tensors
        *_, of_src, of_dst = ctx.needs_input_grad
        if torch.is_grad_enabled():  # create_graph=True
            return None, *_WeightedSums.apply(ctx.graph, grad, x_src, x_dst)
        return (
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


def _dots(graph: Graph, x_src: Tensor, x_dst: Tensor, out: Tensor | None = None) -> Tensor:
    """Dot products [E, H], written to ``out`` where it is given."""
    if out is None:
        out = x_src.new_empty(graph.num_edges, x_src.shape[1])
    try:
        engine = numba_edges(x_src.device, x_src.dtype)
        if engine is not None:
            engine.edge_dots(FUNCTORS["dot"], graph, x_src, x_dst, out)
        else:
            out.copy_(gsddmm(graph, "dot", x_src, x_dst, "u", "v").squeeze(-1))
    except Unsupported:
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

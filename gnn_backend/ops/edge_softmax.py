"""Softmax of edge values over the edges of each destination or source, without autograd."""

from __future__ import annotations

from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.ops.attention import kernel_ready
from gnn_backend.ops.operands import MAX_ROW_BYTES, check_table, choice, ready
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.sparse.edge_softmax import Plan
from gnn_backend.runtime.sparse.rows import rows_of

NORMALISED_BY = ("dst", "src")


def edge_softmax(graph: Graph, logits: Tensor, norm_by: str = "dst") -> Tensor:
    r"""Softmax over the edges that share a destination (or a source).

    .. math:: y_e = \exp(x_e) \Big/ \sum_{e' \,:\, i(e') = i(e)} \exp(x_{e'})

    Parameters
    ----------
    graph : Graph
    logits : Tensor [num_edges, *]
        In the caller's edge order; every trailing column on its own.
    norm_by : {"dst", "src"}

    Returns
    -------
    Tensor [num_edges, *]
        In the dtype of the logits; computed in float32, float64 in float64. A row of nothing but
        -inf, or with a NaN or +inf, is NaN. Equal inputs give equal bits. Two launches, three
        where rows are split.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit.
    Unsupported
        No kernel for this device or dtype.
    """
    return _run(graph, logits, None, norm_by, weighted=False)


def edge_softmax_backward(
    graph: Graph, out: Tensor, grad: Tensor, norm_by: str = "dst", *, weighted: bool = False
) -> Tensor:
    """Gradient towards the logits.

    Parameters
    ----------
    graph : Graph
    out : Tensor [num_edges, *]
        What :func:`edge_softmax` gave.
    grad : Tensor [num_edges, *]
        Gradient of ``out``; with ``weighted`` the product of both.
    norm_by : {"dst", "src"}

    Returns
    -------
    Tensor [num_edges, *]

    Raises
    ------
    InvalidArgument, Unsupported
        As :func:`edge_softmax`.
    """
    check_table("grad", grad, graph.num_edges, graph.device)
    if grad.shape != out.shape or grad.dtype != out.dtype:
        raise invalid("grad", "does not fit out", f"{tuple(grad.shape)} {grad.dtype}",
                      f"{tuple(out.shape)} {out.dtype}")  # fmt: skip
    return _run(graph, out, grad, norm_by, weighted)


def _run(graph: Graph, value: Tensor, grad: Tensor | None, norm_by: str, weighted: bool) -> Tensor:
    choice("norm_by", norm_by, NORMALISED_BY)
    check_table("logits" if grad is None else "out", value, graph.num_edges, graph.device)
    engine = sparse_engine(value.device, value.dtype)
    if value.numel() == 0:
        return value.new_empty(value.shape)
    width = value.numel() // graph.num_edges
    key = ("edge_softmax", norm_by, grad is not None, value.dtype, width)
    plan = graph.plans.get(key)
    if plan is None:
        size = width * value.element_size()
        if size >= MAX_ROW_BYTES:
            raise invalid("logits", "rows too wide", f"{size} bytes", f"below {MAX_ROW_BYTES}")
        rows = rows_of(graph, "dst" if norm_by == "dst" else "src", size)
        plan = graph.plans[key] = Plan(rows, value.dtype, width, grad is not None)
    out: Tensor = plan.run(engine, kernel_ready(value), ready(grad), weighted=weighted)
    return out.view(value.shape)

"""Softmax over the edges that share an end."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.reference.broadcast import accumulator
from gnn_backend.ops.reference.edgewise import gsddmm
from gnn_backend.ops.reference.spmm import gspmm


def edge_softmax(graph: Graph, logits: Tensor, norm_by: str = "dst") -> Tensor:
    """Normalise over the in-edges of each destination, or the out-edges of each source.

    Parameters
    ----------
    graph : Graph
    logits : Tensor [E, *]
    norm_by : {"dst", "src"}

    Returns
    -------
    Tensor [E, *]
    """
    rows = graph if norm_by == "dst" else graph.reversed()
    wide = logits.to(accumulator(logits.dtype))
    largest = gspmm(rows, "copy_rhs", "max", None, wide)[0]
    weight = torch.exp(gsddmm(rows, "sub", wide, largest, "e", "v"))
    total = gspmm(rows, "copy_rhs", "sum", None, weight)[0]
    return gsddmm(rows, "div", weight, total, "e", "v").to(logits.dtype)


def edge_softmax_backward(
    graph: Graph, out: Tensor, grad_out: Tensor, norm_by: str = "dst"
) -> Tensor:
    """Gradient towards the logits [E, *], from the result and the gradient towards it."""
    rows = graph if norm_by == "dst" else graph.reversed()
    wide = accumulator(out.dtype)
    product = out.to(wide) * grad_out.to(wide)
    total = gspmm(rows, "copy_rhs", "sum", None, product)[0]
    return (product - gsddmm(rows, "mul", out.to(wide), total, "e", "v")).to(out.dtype)

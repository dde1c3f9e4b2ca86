"""Edge weights of normalised adjacencies, laid out as the kernels stream them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows


class Weighted(NamedTuple):
    """A graph and a weight for each of its edges.

    Attributes
    ----------
    graph : Graph
    weight : Tensor [E] or None
        In the edge order of ``graph``; None: all are 1.
    """

    graph: Graph
    weight: Tensor | None


def streamed(graph: Graph, weight: Tensor) -> Weighted:
    """Put weights in the order in which destinations read them.

    Parameters
    ----------
    graph : Graph
    weight : Tensor [E]
        In the edge order of ``graph``.

    Returns
    -------
    Weighted
        On a graph of the same edges that are numbered in ``by_dst`` order, so that a kernel reads
        its weights one after the other.
    """
    ids = graph.by_dst.edge_ids
    if ids is None:
        return Weighted(graph, weight)
    return Weighted(_numbered(graph), weight[ids.long()])


def _numbered(graph: Graph) -> Graph:
    """The same edges numbered in ``by_dst`` order; kept with the graph."""
    found = graph.plans.get("by_dst order")
    if found is None:
        csr = graph.by_dst
        found = graph.plans["by_dst order"] = Graph.from_csr(csr.indptr, csr.indices, graph.num_src)
    return found  # type: ignore[no-any-return]


def symmetric(graph: Graph, dtype: torch.dtype) -> Weighted:
    r"""Weights :math:`1 / \sqrt{d_i d_j}` of a graph convolution; kept with the graph.

    Parameters
    ----------
    graph : Graph
        As many sources as destinations. Self-loops are edges like others.
    dtype : torch.dtype
        Of the weights; computed in float32 at least.

    Returns
    -------
    Weighted
        :math:`d` is the in-degree, also that of the source; without in-edges of it the weight is 0.
    """
    key = ("symmetric", dtype)
    found = graph.plans.get(key)
    if found is None:
        # Tensors born in inference mode could not take part in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            csr = graph.by_dst
            wide = torch.promote_types(dtype, torch.float32)
            scale = csr.indptr.diff().to(wide).rsqrt()
            scale = scale.masked_fill(scale.isinf(), 0.0)
            rows = expand_rows(csr.indptr, graph.num_edges)
            weight = (scale[rows] * scale[csr.indices.long()]).to(dtype)
            numbered = _numbered(graph)
        found = graph.plans[key] = Weighted(numbered, weight)
    return found  # type: ignore[no-any-return]

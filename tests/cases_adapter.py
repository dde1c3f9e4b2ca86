"""Our operators under the names and signatures of ``tests/cases/cases.py``.

    python -m tests.cases.cases --impl tests.cases_adapter

Raising NotImplementedError declines a case; operators that are not here are not run.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.ops.attention import dot_attention, gat_attention, gatv2_attention

_graphs = WeakTensorKeyDictionary()  # indices -> (indptr, what it was built from, Graph)


def attention_gatv2(
    indptr: Tensor, indices: Tensor, x_l: Tensor, x_r: Tensor, att: Tensor, negative_slope: float
) -> Tensor:
    """GATv2 attention over in-edges given as CSR by destination."""
    graph = _graph(indptr, indices, x_l.shape[0])
    return gatv2_attention(graph, x_l, x_r, att, negative_slope=negative_slope)


def attention_gatv2_edge(
    indptr: Tensor,
    indices: Tensor,
    x_l: Tensor,
    x_r: Tensor,
    att: Tensor,
    negative_slope: float,
    edge_feat: Tensor,
) -> Tensor:
    """The same with edge features [E, H, D] inside the score."""
    graph = _graph(indptr, indices, x_l.shape[0])
    return gatv2_attention(graph, x_l, x_r, att, negative_slope=negative_slope, edge=edge_feat)


def attention_gatv2_alpha(
    indptr: Tensor, indices: Tensor, x_l: Tensor, x_r: Tensor, att: Tensor, negative_slope: float
) -> tuple[Tensor, Tensor]:
    """GATv2 attention with its weights [E, H]."""
    graph = _graph(indptr, indices, x_l.shape[0])
    return gatv2_attention(
        graph, x_l, x_r, att, negative_slope=negative_slope, return_attention=True
    )


def attention_gat(
    indptr: Tensor, indices: Tensor, x: Tensor, el: Tensor, er: Tensor, negative_slope: float
) -> Tensor:
    """GAT attention over in-edges."""
    graph = _graph(indptr, indices, x.shape[0])
    return gat_attention(graph, x, el, er, negative_slope=negative_slope)


def attention_dot(
    indptr: Tensor, indices: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> Tensor:
    """Dot-product attention over in-edges."""
    if k.shape != v.shape:
        raise Unsupported("head-dim", "keys and values of different widths")
    return dot_attention(_graph(indptr, indices, k.shape[0]), q, k, v, scale=scale)


def _graph(indptr: Tensor, indices: Tensor, num_src: int) -> Graph:
    """The Graph of these very tensors, kept while they live and nobody writes to them."""
    if torch.compiler.is_compiling() or indices.is_inference() or indptr.is_inference():
        return Graph.from_csr(indptr, indices, num_src)
    kept = _graphs.get(indices)
    if kept is not None:
        owner, versions, graph = kept
        if owner() is indptr and versions == (indptr._version, indices._version, num_src):
            return graph
    graph = Graph.from_csr(indptr, indices, num_src)
    _graphs[indices] = weakref.ref(indptr), (indptr._version, indices._version, num_src), graph
    return graph

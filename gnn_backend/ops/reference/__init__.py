"""Sparse operators in plain torch: the oracle of their tests, and the path without a kernel.

They take any floating-point dtype and any device, write edge-wise intermediates, and add in the
order of edges on a CPU; on CUDA their sums use atomics, so that two runs may differ by rounding.
Sums of 16-bit values are taken in float32. Conventions are those of ``gnn_backend.ops``: node
tensors [N, *], edge tensors [E, *] in the caller's edge order, one row for each node or edge.
"""

from gnn_backend.ops.reference.edge_softmax import edge_softmax, edge_softmax_backward
from gnn_backend.ops.reference.edgewise import gsddmm
from gnn_backend.ops.reference.matmul import (
    gather_mm,
    gather_mm_scatter,
    segment_mm,
    segment_mm_backward_weight,
    typed_linear,
    typed_weight_grad,
)
from gnn_backend.ops.reference.segment import scatter_add, segment_reduce, segment_reduce_backward
from gnn_backend.ops.reference.spmm import gspmm

__all__ = [
    "edge_softmax",
    "edge_softmax_backward",
    "gather_mm",
    "gather_mm_scatter",
    "gsddmm",
    "gspmm",
    "scatter_add",
    "segment_mm",
    "segment_mm_backward_weight",
    "segment_reduce",
    "segment_reduce_backward",
    "typed_linear",
    "typed_weight_grad",
]

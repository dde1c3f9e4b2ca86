"""PyG's ``spmm`` on the device's kernels: products of an adjacency with features, and extremes.

What has no kernel stays PyG's own; see :mod:`gnn_backend.adapters.operator`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.grouping import runs_on_kernels
from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant
from gnn_backend.ops.aggregation import aggregate

_NAMES = {"sum": "sum", "add": "sum", "mean": "mean", "max": "max", "min": "min"}
_LAYOUTS = (torch.sparse_csr, torch.sparse_coo)


def spmm_ready(src: Any, other: Any, reduce: str = "sum") -> bool:
    """Whether a call of ``utils.spmm`` has a kernel: a sparse tensor that wants no gradient."""
    if reduce not in _NAMES or type(src) is not Tensor or src.layout not in _LAYOUTS:
        return False
    if not runs_on_kernels(other) or other.dim() != 2 or src._nnz() == 0:
        return False
    if src.requires_grad or src.dtype != other.dtype or src.device != other.device:
        return False
    if src.layout is torch.sparse_coo and not src.is_coalesced():
        return False
    return src.dim() == 2 and src.dense_dim() == 0 and src.shape[1] == other.shape[0]


def spmm(src: Tensor, other: Tensor, reduce: str = "sum") -> Tensor:
    """Product of a sparse matrix with features, or another reduction of its terms.

    Parameters
    ----------
    src : sparse COO or CSR Tensor [N, M]
    other : Tensor [M, F]
    reduce : {"sum", "add", "mean", "max", "min"}
        Over the entries of a row. The first of equal extremes gets the gradient.

    Returns
    -------
    Tensor [N, F]
    """
    graph = graph_of(src, Variant(src.shape[1], src.shape[0], False))
    values = src.values() if src.layout is torch.sparse_csr else src._values()
    out: Tensor = aggregate(
        graph, other, _NAMES[reduce], edge=values, message="mul", ties="first", nan="propagate"
    )
    return out

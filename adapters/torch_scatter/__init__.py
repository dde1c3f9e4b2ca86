"""torch_scatter: its functions, with its signatures, on our kernels.

They work without torch_scatter, and without ``enable()``. On CUDA they run on the segment kernels
where the index is sorted, or has been used before, and else on torch's own operations, as on the
CPU. The library's conventions hold: an index broadcasts, ``out=`` takes part, extremes come with
their places, and what is made of nothing is 0.
"""

from __future__ import annotations

from gnn_backend.adapters.torch_scatter.cache import cached_bytes, clear_cache
from gnn_backend.adapters.torch_scatter.composite import (
    scatter_log_softmax,
    scatter_logsumexp,
    scatter_softmax,
    scatter_std,
)
from gnn_backend.adapters.torch_scatter.scatter import (
    scatter,
    scatter_add,
    scatter_max,
    scatter_mean,
    scatter_min,
    scatter_mul,
    scatter_sum,
)
from gnn_backend.adapters.torch_scatter.segment import (
    gather_coo,
    gather_csr,
    segment_add_coo,
    segment_add_csr,
    segment_coo,
    segment_csr,
    segment_max_coo,
    segment_max_csr,
    segment_mean_coo,
    segment_mean_csr,
    segment_min_coo,
    segment_min_csr,
    segment_sum_coo,
    segment_sum_csr,
)

__all__ = [
    "cached_bytes",
    "clear_cache",
    "gather_coo",
    "gather_csr",
    "scatter",
    "scatter_add",
    "scatter_log_softmax",
    "scatter_logsumexp",
    "scatter_max",
    "scatter_mean",
    "scatter_min",
    "scatter_mul",
    "scatter_softmax",
    "scatter_std",
    "scatter_sum",
    "segment_add_coo",
    "segment_add_csr",
    "segment_coo",
    "segment_csr",
    "segment_max_coo",
    "segment_max_csr",
    "segment_mean_coo",
    "segment_mean_csr",
    "segment_min_coo",
    "segment_min_csr",
    "segment_sum_coo",
    "segment_sum_csr",
]

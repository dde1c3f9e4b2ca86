"""Grouping of edges by one endpoint: a radix sort on CUDA, a counting sort on the CPU.

Both return the same thing: ``indptr``, the other endpoint in grouped order, and the permutation
(grouped position -> input position). Inputs are checked by the caller of the CUDA form (one
device-to-host copy for everything) and while counting in the CPU form, which lives in
``counting_sort`` so that a GPU user needs no Numba.
"""

from __future__ import annotations

import torch
from torch import Tensor

INT32_MAX = 2**31 - 1


def index_dtype(count: int) -> torch.dtype:
    """Return int32 if every offset up to ``count`` fits it, else int64."""
    return torch.int32 if count <= INT32_MAX else torch.int64


def first_out_of_range(keys: Tensor, groups: int) -> int:
    """Position of the first id outside ``[0, groups)`` in a CPU tensor, or -1."""
    bad = ((keys < 0) | (keys >= groups)).nonzero()
    return int(bad[0]) if bad.numel() else -1


def group_cuda(keys: Tensor, values: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Group CUDA edges by ``keys`` (radix sort, stable); no device-to-host copy.

    Keys out of range are not detected here and do no harm: the boundaries come from a search
    over the sorted keys, which indexes nothing.
    """
    dtype = index_dtype(keys.numel())
    sorted_keys, order = torch.sort(keys.int(), stable=True)
    order = order.to(dtype)
    bounds = torch.arange(groups + 1, device=keys.device, dtype=torch.int32)
    indptr = torch.searchsorted(sorted_keys, bounds, out_int32=dtype == torch.int32)
    return indptr, values[order].int(), order


def expand_rows(indptr: Tensor, num_edges: int) -> Tensor:
    """Row id of every CSR position, int32 [E]; no device-to-host copy."""
    rows = indptr.numel() - 1
    if indptr.device.type == "cpu":
        from gnn_backend.graph.counting_sort import expand_cpu

        return expand_cpu(indptr, num_edges)
    ids = torch.arange(rows, device=indptr.device, dtype=torch.int32)
    return torch.repeat_interleave(ids, indptr.diff().long(), output_size=num_edges)

"""Grouping of edges by one endpoint: a stable counting sort on the CPU, a radix sort on CUDA.

Both return the same thing: ``indptr``, the other endpoint in grouped order, and the permutation
(grouped position -> input position). Inputs are checked by the caller of the CUDA form (one
device-to-host copy for everything) and while counting in the CPU form.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

INT32_MAX = 2**31 - 1


def index_dtype(count: int) -> torch.dtype:
    """Return int32 if every offset up to ``count`` fits it, else int64."""
    return torch.int32 if count <= INT32_MAX else torch.int64


@numba.njit(cache=True, nogil=True)
def _count(keys, indptr):  # type: ignore[no-untyped-def]
    groups = indptr.shape[0] - 1
    for e in range(keys.shape[0]):
        key = keys[e]
        if key < 0 or key >= groups:
            return e
        indptr[key + 1] += 1
    for g in range(groups):
        indptr[g + 1] += indptr[g]
    return -1


@numba.njit(cache=True, nogil=True)
def _place(keys, values, cursor, out_values, out_order):  # type: ignore[no-untyped-def]
    for e in range(keys.shape[0]):
        key = keys[e]
        position = cursor[key]
        cursor[key] = position + 1
        out_values[position] = values[e]
        out_order[position] = e


@numba.njit(cache=True, nogil=True)
def _expand(indptr, rows):  # type: ignore[no-untyped-def]
    for row in range(indptr.shape[0] - 1):
        for position in range(indptr[row], indptr[row + 1]):
            rows[position] = row


def first_out_of_range(keys: Tensor, groups: int) -> int:
    """Position of the first id outside ``[0, groups)`` in a CPU tensor, or -1."""
    bad = ((keys < 0) | (keys >= groups)).nonzero()
    return int(bad[0]) if bad.numel() else -1


def group_cpu(keys: Tensor, values: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Group CPU edges by ``keys`` in O(edges), stable.

    Parameters
    ----------
    keys, values : int32 or int64 [E]
    groups : int
        Number of distinct keys allowed, 0 .. groups-1.

    Returns
    -------
    indptr [groups + 1], values [E] int32, order [E], first_bad
        ``first_bad`` is the position of the first key out of range (the rest is then
        meaningless), or -1.
    """
    dtype = np.int32 if keys.numel() <= INT32_MAX else np.int64
    indptr = np.zeros(groups + 1, dtype)
    key_array, value_array = keys.contiguous().numpy(), values.contiguous().numpy()
    bad = int(_count(key_array, indptr))
    out_values = np.empty(keys.numel(), np.int32)
    order = np.empty(keys.numel(), dtype)
    if bad < 0:
        _place(key_array, value_array, indptr[:-1].copy(), out_values, order)
    return torch.from_numpy(indptr), torch.from_numpy(out_values), torch.from_numpy(order), bad


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
        out = np.empty(num_edges, np.int32)
        _expand(indptr.numpy(), out)
        return torch.from_numpy(out)
    ids = torch.arange(rows, device=indptr.device, dtype=torch.int32)
    return torch.repeat_interleave(ids, indptr.diff().long(), output_size=num_edges)

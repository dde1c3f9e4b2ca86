"""Stable counting sort of edges by one endpoint, in Numba: O(edges + groups), for CPU tensors."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor

INT32_MAX = 2**31 - 1


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


def expand_cpu(indptr: Tensor, num_edges: int) -> Tensor:
    """Row id of every CSR position, int32 [E]."""
    out = np.empty(num_edges, np.int32)
    _expand(indptr.numpy(), out)
    return torch.from_numpy(out)

"""Stable counting sort of edges by one endpoint, in Numba: O(edges + groups), for CPU tensors."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from gnn_backend.runtime import cpu_module

INT32_MAX = 2**31 - 1


_ready: dict[tuple[Any, ...], Any] = {}


def _run(name: str, *arrays: np.ndarray) -> Any:
    """Call a function of the template; all arrays are contiguous."""
    key = (name, *((array.dtype.char, array.flags.aligned) for array in arrays))
    function = _ready.get(key)
    if function is None:
        types = tuple(numba.typeof(array) for array in arrays)
        function = _ready[key] = cpu_module.compiled("counting_sort", name, types)
    return function(*arrays)


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
    bad = int(_run("count", key_array, indptr))
    out_values = np.empty(keys.numel(), np.int32)
    order = np.empty(keys.numel(), dtype)
    if bad < 0:
        _run("place", key_array, value_array, indptr[:-1].copy(), out_values, order)
    return torch.from_numpy(indptr), torch.from_numpy(out_values), torch.from_numpy(order), bad


def expand_cpu(indptr: Tensor, num_edges: int) -> Tensor:
    """Row id of every CSR position, int32 [E]."""
    out = np.empty(num_edges, np.int32)
    _run("expand", indptr.contiguous().numpy(), out)
    return torch.from_numpy(out)

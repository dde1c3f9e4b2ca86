"""Rows grouped by a key: a stable sort, or none where the keys ascend."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph.build import index_dtype


def group(keys: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Group rows by a key, stable; no device-to-host copy.

    Parameters
    ----------
    keys : int32 [M]
        0 .. groups-1.
    groups : int

    Returns
    -------
    indptr : int32 [groups + 1]
    order : int32 [M]
        Place in the groups, one after the other -> row. Both are int64 from 2^31 rows on.
    """
    if keys.device.type != "cuda":
        from gnn_backend.graph.counting_sort import group_cpu

        indptr, _, order, _ = group_cpu(keys, keys, groups)
        return indptr, order
    ascending, order = torch.sort(keys.to(_narrowest(groups)), stable=True)
    return bounds(ascending, groups), order.to(index_dtype(keys.numel()))


def bounds(ascending: Tensor, groups: int) -> Tensor:
    """Where each group starts among keys [M] that ascend, and the last one ends: [groups + 1]."""
    numbers = torch.arange(groups + 1, device=ascending.device, dtype=ascending.dtype)
    narrow = index_dtype(ascending.numel()) == torch.int32
    return torch.searchsorted(ascending, numbers, out_int32=narrow)


def _narrowest(count: int) -> torch.dtype:
    """For keys of a radix sort, which goes over them once a byte; it holds ``count`` itself."""
    if count < 2**8:
        return torch.uint8
    return torch.int16 if count < 2**15 else torch.int32

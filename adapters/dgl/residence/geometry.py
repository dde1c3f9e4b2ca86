"""Nearest neighbours among points, on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.dgl.residence.native import native

_EXACT = frozenset({"bruteforce", "bruteforce-sharemem"})  # one result, found in two ways
_DISTANCES = 1 << 24  # how many are held at a time


@native("KNN")
def knn(
    x: Any, x_offsets: Any, y: Any, y_offsets: Any, k: int, out: Any, algorithm: str
) -> Any:  # fmt: skip
    """The ``k`` points of ``x`` next to each of ``y``, within segments."""
    if algorithm not in _EXACT:
        return NotImplemented
    points, queries, found = x.tensor, y.tensor, out.tensor
    bounds = [offsets.tensor.tolist() for offsets in (x_offsets, y_offsets)]
    number = torch.arange(queries.shape[0], dtype=found.dtype, device=found.device)
    found[0] = number.repeat_interleave(k, output_size=found.shape[1])
    nearest = found[1].view(-1, k)
    for segment in range(len(bounds[0]) - 1):
        begin, end, first, last = (b[segment + n] for b in bounds for n in (0, 1))
        _nearest(points[begin:end], queries[first:last], nearest[first:last]).add_(begin)
    return None


def _nearest(points: Tensor, queries: Tensor, out: Tensor) -> Tensor:
    """Fill ``out`` [queries, k] with the nearest points."""
    rows = max(1, _DISTANCES // max(1, points.shape[0]))
    for query, place in zip(queries.split(rows), out.split(rows), strict=True):
        # Not by products of matrices: their rounding would put near neighbours in another order.
        distance = torch.cdist(query, points, compute_mode="donot_use_mm_for_euclid_dist")
        place.copy_(distance.topk(out.shape[1], largest=False).indices)
    return out

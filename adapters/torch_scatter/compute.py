"""Reductions of a source into its place, without autograd: on kernels, or by torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.torch_scatter.place import Place, has_kernels
from gnn_backend.profile import count_host_operator


def by_torch(name: str) -> None:
    """Count a call that torch's own operations answered."""
    if not torch.compiler.is_compiling():
        count_host_operator(f"torch_scatter.{name}")


def total(place: Place, op: str, src: Tensor) -> Tensor:
    """Sum or mean over the groups of ``place``; what is made of no values is 0.

    Parameters
    ----------
    place : Place
        On whose groups the source is (``place.on_groups(src)``).
    op : {"sum", "mean"}
    src : Tensor [*, E, *]

    Returns
    -------
    Tensor [*, N, *]
    """
    groups, rows = place.groups, place.listed(src)
    assert groups is not None
    if has_kernels(src.device, src.dtype):
        return place.of_nodes(groups.reduce(op, rows)[0])
    by_torch(op)
    return place.of_nodes(_segments(groups, op, rows, 0.0))


def _segments(groups: Any, op: str, rows: Tensor, initial: float) -> Tensor:
    """torch's reduction over segments, for lists that are sorted as they stand."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32)).contiguous()
    ends = groups.indptr.long()
    first, last = int(ends[0]), int(ends[-1])
    out = torch.segment_reduce(wide[first:last], op, offsets=ends - first, axis=0, unsafe=True,
                               initial=initial)  # fmt: skip
    return out.to(rows.dtype)


def lowest(dtype: torch.dtype, op: str) -> Any:
    """What a maximum (or minimum) starts from: no value that is not above it wins."""
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return limits.min if op == "max" else limits.max


def extreme(place: Place, op: str, src: Tensor) -> tuple[Tensor, Tensor]:
    """Largest or smallest values and where they stand.

    A NaN never wins, nor does what is not above the lowest finite number (below the highest).

    Parameters
    ----------
    place : Place
    op : {"max", "min"}
    src : Tensor [*, E, *]

    Returns
    -------
    values : Tensor [*, N, *]
        0 where nothing won.
    arg : int64 [*, N, *]
        The first place along the dimension that holds the value; E where nothing won.
    """
    size, worst = place.shape[place.dim], lowest(src.dtype, op)
    if src.numel() == 0 or place.count == 0:
        empty = src.new_zeros(place.result)
        return empty, torch.full_like(empty, size, dtype=torch.int64)
    if place.on_groups(src):
        values, arg = _grouped_extreme(place, op, src, worst)
    else:
        by_torch(op)
        values, arg = _scattered_extreme(place, op, src, worst)
    won = arg < size
    return torch.where(won, values, 0), arg


def _grouped_extreme(place: Place, op: str, src: Tensor, worst: Any) -> tuple[Tensor, Tensor]:
    groups, rows, size = place.groups, place.listed(src), place.shape[place.dim]
    assert groups is not None
    if has_kernels(src.device, src.dtype):
        values, found = groups.reduce(op, rows)
        assert found is not None
        arg = found.long()
        if place.blocks > 1:
            arg = torch.where(arg < 0, arg, arg % size)
        above = values > worst if op == "max" else values < worst
        arg = torch.where((arg >= 0) & above, arg, size)
        return place.of_nodes(values), place.of_nodes(arg)
    by_torch(op)
    clean = _clean(rows, op, worst)
    values = _segments(groups, op, clean, worst)
    members = groups.group_of().long()
    # Few are hits, so that only they are scattered: the first place wins.
    hits = ((clean == values.index_select(0, members)) & (clean != worst)).nonzero()
    targets = members[hits[:, 0]] * place.width + hits[:, 1]
    arg = torch.full((values.numel(),), size, dtype=torch.int64)
    arg.scatter_reduce_(0, targets, hits[:, 0] % size, "amin")
    return place.of_nodes(values), place.of_nodes(arg.view(values.shape))


def _scattered_extreme(place: Place, op: str, src: Tensor, worst: Any) -> tuple[Tensor, Tensor]:
    index, dim, size = place.index, place.dim, place.shape[place.dim]
    clean = _clean(src, op, worst)
    shape = (*src.shape[:dim], place.rows, *src.shape[dim + 1 :])
    values = torch.full(shape, worst, dtype=src.dtype, device=src.device)
    values.scatter_reduce_(dim, index, clean, f"a{op}")
    hit = (clean == values.gather(dim, index)) & (clean != worst)
    places = torch.arange(size, device=src.device).view(-1, *(1,) * (src.dim() - dim - 1))
    arg = torch.full(shape, size, dtype=torch.int64, device=src.device)
    arg.scatter_reduce_(dim, index, torch.where(hit, places, size), "amin")
    return values.narrow(dim, 0, place.count), arg.narrow(dim, 0, place.count)


def _clean(src: Tensor, op: str, worst: Any) -> Tensor:
    """Without NaN and without what is beyond the worst finite number."""
    if not src.dtype.is_floating_point:
        return src
    limit = torch.full((), worst, dtype=src.dtype, device=src.device)
    return torch.fmax(src, limit) if op == "max" else torch.fmin(src, limit)

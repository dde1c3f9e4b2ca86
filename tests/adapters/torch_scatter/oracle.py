"""torch_scatter's functions again, one group at a time in plain torch: slow and obvious."""

from __future__ import annotations

import torch
from torch import Tensor


def expanded(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """The index in the shape of the source."""
    dim %= src.dim()
    if index.dim() == 1:
        index = index.reshape((1,) * dim + (-1,))
    return index.reshape(index.shape + (1,) * (src.dim() - index.dim())).expand(src.shape)


def of_offsets(indptr: Tensor, src: Tensor) -> Tensor:
    """The index that offsets stand for; -1 for values in no segment."""
    dim = indptr.dim() - 1
    wide = indptr.expand(*src.shape[:dim], -1)
    places = torch.arange(src.shape[dim])
    inside = (places >= wide[..., :-1, None]) & (places < wide[..., 1:, None])
    found = torch.where(inside.any(-2), inside.int().argmax(-2), -1)
    return found.reshape(found.shape + (1,) * (src.dim() - found.dim())).expand(src.shape)


def reduced(op: str, src: Tensor, index: Tensor, dim: int, size: int) -> Tensor:
    """Sum, mean, mul, max, min of the values of each group; differentiable."""
    rows = []
    for n in range(size):
        here = index == n
        count = here.sum(dim)
        if op in ("sum", "mean"):
            row = torch.where(here, src, 0).sum(dim)
            row = row / count.clamp(min=1) if op == "mean" else row
        elif op == "mul":
            row = torch.where(here, src, 1).prod(dim)
        else:
            worst = -torch.inf if op == "max" else torch.inf
            held = torch.where(here, src, worst)
            row = held.max(dim).values if op == "max" else held.min(dim).values
            row = torch.where(count > 0, row, 0)
        rows.append(row)
    if not rows:
        return src.sum(dim, keepdim=True).narrow(dim, 0, 0)
    return torch.stack(rows, dim)


def first(src: Tensor, index: Tensor, dim: int, values: Tensor) -> Tensor:
    """The first place of each group that holds its value; the size of ``dim`` where none does."""
    size = src.shape[dim]
    places = torch.arange(size).reshape((-1,) + (1,) * (src.dim() - dim - 1))
    found = []
    for n in range(values.shape[dim]):
        holds = (index == n) & (src == values.select(dim, n).unsqueeze(dim))
        found.append(torch.where(holds, places, size).min(dim).values if size else holds.sum(dim))
    return torch.stack(found, dim)


def softmax(src: Tensor, index: Tensor, dim: int) -> Tensor:
    """Softmax within each group, by the definition."""
    size = int(index.max()) + 1
    powers = (src - reduced("max", src, index, dim, size).gather(dim, index)).exp()
    return powers / reduced("sum", powers, index, dim, size).gather(dim, index)

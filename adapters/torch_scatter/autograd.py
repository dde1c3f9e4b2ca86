"""Differentiable sums, means, products, extremes, softmax and gathers over a :class:`Place`.

Gradients run through torch's operations or through these functions again, so they have gradients
themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.torch_scatter import compute
from gnn_backend.adapters.torch_scatter.place import Place, has_kernels


def sums(src: Tensor, place: Place) -> Tensor:
    """Sum of the values with equal places; 0 of none.

    Parameters
    ----------
    src : Tensor [*, E, *]
    place : Place

    Returns
    -------
    Tensor [*, N, *]
    """
    if place.on_groups(src):
        return _GroupTotal.apply(src, place, "sum")  # type: ignore[no-any-return]
    compute.by_torch("sum")
    return _scattered(src, place)


def means(src: Tensor, place: Place, rounding: str = "floor") -> Tensor:
    """Mean of the values with equal places, of integers rounded as ``div`` does; 0 of none."""
    if place.on_groups(src):
        return _GroupTotal.apply(src, place, "mean")  # type: ignore[no-any-return]
    compute.by_torch("mean")
    total, count = _scattered(src, place, wide=True), counts(src, place)
    return total.div(count, rounding_mode=_only(rounding, src)).to(src.dtype)


def counts(src: Tensor, place: Place) -> Tensor:
    """How many values are reduced to each of the result, at least 1, in a shape that broadcasts.

    In the dtype of ``src``, of 16 bits in float32, which has room for them.
    """
    dtype = _wide(src.dtype)
    if place.groups is not None:
        found = place.groups.counts().view(*place.shape[: place.dim], place.rows)
        found = found[..., : place.count].clamp(min=1).to(dtype)
        return found.view(found.shape + (1,) * (src.dim() - found.dim()))
    index, dim = _narrowed(place.index, place.dim), place.dim
    ones = torch.ones(index.shape, dtype=dtype, device=src.device)
    shape = (*index.shape[:dim], place.rows, *index.shape[dim + 1 :])
    found = ones.new_zeros(shape).scatter_add_(dim, index, ones)
    return found.narrow(dim, 0, place.count).clamp_(min=1)


def _narrowed(index: Tensor, dim: int) -> Tensor:
    """The index without what is expanded, so that it is counted once."""
    for d in range(index.dim()):
        if d != dim and index.stride(d) == 0 and index.shape[d] > 1:
            index = index.narrow(d, 0, 1)
    return index


def _only(rounding: str, src: Tensor) -> str | None:
    return None if src.is_floating_point() else rounding


def extremes(src: Tensor, place: Place, op: str) -> tuple[Tensor, Tensor]:
    """Largest or smallest value (0 of none) and where it stands, as ``compute.extreme``."""
    if torch.compiler.is_compiling():
        with torch.no_grad():
            _, arg = compute.extreme(place, op, src)
        size = place.shape[place.dim]
        values = (
            src.gather(place.dim, arg.clamp(max=size - 1)) if size else src.new_zeros(arg.shape)
        )
        return torch.where(arg < size, values, 0), arg
    return _Extreme.apply(src, place, op)  # type: ignore[no-any-return]


def products(src: Tensor, place: Place) -> Tensor:
    """Product of the values with equal places; 1 of none."""
    compute.by_torch("mul")
    if torch.compiler.is_compiling():
        return _product(src, place)
    return _Product.apply(src, place)  # type: ignore[no-any-return]


def taken(nodes: Tensor, place: Place) -> Tensor:
    """What the results say to each of their values: the opposite way of :func:`sums`.

    Parameters
    ----------
    nodes : Tensor [*, N, *]
    place : Place

    Returns
    -------
    Tensor [*, E, *]
    """
    if place.on_groups(nodes):
        return _Taken.apply(nodes, place)  # type: ignore[no-any-return]
    if place.rows > place.count:
        behind = 2 * (nodes.dim() - 1 - place.dim)
        nodes = torch.nn.functional.pad(nodes, (*(0,) * behind, 0, place.rows - place.count))
    return nodes.gather(place.dim, place.index)


def softmax(src: Tensor, place: Place) -> Tensor | None:
    """Softmax over the values with equal places, on kernels; None where there are none."""
    if place.on_groups(src) and has_kernels(src.device, src.dtype):
        return _Softmax.apply(src, place)  # type: ignore[no-any-return]
    return None


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _scattered(src: Tensor, place: Place, wide: bool = False) -> Tensor:
    """Sums by torch, of 16-bit values in float32; ``wide``: left in it."""
    shape = (*src.shape[: place.dim], place.rows, *src.shape[place.dim + 1 :])
    out = torch.zeros(shape, dtype=_wide(src.dtype), device=src.device)
    out = out.scatter_add_(place.dim, place.index, src.to(out.dtype))
    if place.rows != place.count:
        out = out.narrow(place.dim, 0, place.count).contiguous()
    return out if wide else out.to(src.dtype)


def _product(src: Tensor, place: Place) -> Tensor:
    out = torch.ones(place.result, dtype=src.dtype, device=src.device)
    return out.scatter_reduce_(place.dim, place.index, src, "prod")


def _own(result: Tensor) -> Tensor:
    """A result of a function that may be written to: torch forbids that of views made there."""
    return torch.ops.aten._unsafe_view(result, result.shape) if result._is_view() else result


class _GroupTotal(torch.autograd.Function):
    """Sum or mean over groups."""

    @staticmethod
    def forward(ctx: Any, src: Tensor, place: Place, op: str) -> Tensor:
        ctx.place, ctx.op = place, op
        return _own(compute.total(place, op, src))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.op == "mean":
            grad = (grad / counts(grad, ctx.place)).to(grad.dtype)
        return taken(grad, ctx.place), None, None


class _Taken(torch.autograd.Function):
    """A row of the nodes for every entry."""

    @staticmethod
    def forward(ctx: Any, nodes: Tensor, place: Place) -> Tensor:
        ctx.place = place
        rows = place.nodes(nodes).index_select(0, place.groups.group_of())  # type: ignore[union-attr]
        return _own(place.unlisted(rows))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return sums(grad, ctx.place), None


class _Extreme(torch.autograd.Function):
    """Largest or smallest value and its place, which alone gets the gradient."""

    @staticmethod
    def forward(ctx: Any, src: Tensor, place: Place, op: str) -> tuple[Tensor, Tensor]:
        values, arg = map(_own, compute.extreme(place, op, src))
        ctx.place = place
        ctx.save_for_backward(arg)
        ctx.mark_non_differentiable(arg)
        return values, arg

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        (arg,) = ctx.saved_tensors
        place = ctx.place
        size = place.shape[place.dim]
        shape = (*place.shape[: place.dim], size + 1, *place.shape[place.dim + 1 :])
        # One place more, for what nobody won.
        spread = grad.new_zeros(shape).scatter(place.dim, arg, grad)
        return spread.narrow(place.dim, 0, size), None, None


class _Product(torch.autograd.Function):
    """Product, with the gradient out / src; NaN, as of 0 / 0, counts as 0."""

    @staticmethod
    def forward(ctx: Any, src: Tensor, place: Place) -> Tensor:
        out = _product(src, place)
        ctx.place = place
        ctx.save_for_backward(src, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        src, out = ctx.saved_tensors
        found = (grad * out).gather(ctx.place.dim, ctx.place.index) / src
        return found.masked_fill(found.isnan(), 0), None


class _Softmax(torch.autograd.Function):
    """Softmax over groups, on kernels."""

    @staticmethod
    def forward(ctx: Any, src: Tensor, place: Place) -> Tensor:
        out = _own(place.unlisted(place.groups.softmax(place.listed(src))))  # type: ignore[union-attr]
        ctx.place = place
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        place = ctx.place
        if torch.is_grad_enabled():  # a gradient of the gradient may be wanted
            weighted = out * grad
            return weighted - out * taken(sums(weighted, place), place), None
        rows = place.groups.softmax_backward(place.listed(out), place.listed(grad))
        return place.unlisted(rows), None

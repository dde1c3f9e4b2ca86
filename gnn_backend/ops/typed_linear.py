"""Typed linear: rows times the weight of their type, and the weights' gradient; without autograd.

Places ``i`` run over a list that is sorted by type, whose bounds :class:`Segmented` has. What a
place reads and writes is given by indices, so that rows need not lie in that order and no copy of
them is made: on a GPU the kernels gather, multiply and scatter in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.ops import segment_products
from gnn_backend.ops.softmax_attention import kernel_ready
from gnn_backend.runtime import gemm
from gnn_backend.runtime.gemm_choice import Product, Way, choose, out_of_order

MAX_ROW_BYTES = 1 << 32  # strides are 32-bit in the kernels


class Segmented(Protocol):
    """Bounds of the types' places.

    Attributes
    ----------
    ptr : int32 or int64 Tensor [T + 1]
        On the device of the rows; ascending, from 0 to the number of places.
    lengths : sequence of int [T], optional
        Places of each type; where they are None, those who need them wait for the device.
    """

    @property
    def ptr(self) -> Tensor: ...

    @property
    def lengths(self) -> Sequence[int] | None: ...


class Bounds(NamedTuple):
    """Segments of which nothing but the bounds is known; see :class:`Segmented`."""

    ptr: Tensor
    lengths: Sequence[int] | None = None


def has_kernels(x: Tensor) -> bool:
    """Whether rows like these are multiplied by one kernel, not by one product of torch a type."""
    return gemm.has_kernels(x)


@torch.no_grad()
def typed_linear(
    x: Tensor,
    weight: Tensor,
    segments: Segmented,
    *,
    rows: Tensor | None = None,
    out_rows: Tensor | None = None,
    num_out: int | None = None,
    transposed: bool = False,
    scale: Tensor | None = None,
    way: Way | None = None,
) -> Tensor:
    """``out[out_rows[i]] = scale[i] * x[rows[i]] @ weight[type of i]`` for every place i.

    Parameters
    ----------
    x : Tensor [N, I] or [N, H, I]
        float32, bfloat16, float16 or float64.
    weight : Tensor [T, I, O], or [T, H, I, O] for a weight a head
        With ``transposed`` the last two dimensions are exchanged.
    segments : Segmented
        Of T types and M places. Their order, if they have one, is not applied: pass it as ``rows``
        or ``out_rows`` where rows of x or of the result are not sorted.
    rows, out_rows : int32 or int64 [M], optional
        Rows of x, and of the result, by place; by default the place itself. No two places have the
        same row of the result.
    num_out : int, optional
        Rows of the result, by default M. If there are more than places, those of no place are 0.
    transposed : bool
    scale : Tensor [M], optional
        Read as float32 (float64 for float64).
    way : str, optional
        Go this way and not the one that :func:`~gnn_backend.runtime.gemm_choice.choose` chooses.

    Returns
    -------
    Tensor [num_out, O] or [num_out, H, O]
        In the dtype of x; products are added in float32, of float64 in float64. float32 is
        multiplied exactly, or as tf32 where ``torch.backends.cuda.matmul`` allows it. Equal inputs
        give equal bits.

    Raises
    ------
    InvalidArgument
        Shapes or dtypes do not fit.
    """
    places = _places(segments, x, rows, out_rows, scale)
    heads, inner, outer = _check_weight(x, weight, segments, transposed)
    if num_out is None:
        num_out = places
    if num_out < places or (out_rows is None and num_out != places):
        expected = f"{places}, or more with out_rows"
        raise invalid("num_out", "wrong number of rows", num_out, expected)
    shape = (num_out, *x.shape[1:-1], outer)
    gathered = rows is not None or out_rows is not None
    if way is None:
        way = choose(_product(x, len(segments.ptr) - 1, inner, outer, gathered, heads))
    if not places or not outer or not inner:
        return x.new_zeros(shape)
    if way in ("mm", "grouped"):
        last = weight.transpose(1, 2) if transposed else weight
        return _by_torch(way, x, last, segments, scale)
    out = x.new_empty(shape) if num_out == places else x.new_zeros(shape)
    table, result = _with_heads(x), _with_heads(out)
    matrices = weight if heads else weight.unsqueeze(1)
    if way == "kernel":
        columns = matrices if transposed else matrices.transpose(2, 3)
        gemm.linear(
            kernel_ready(table), kernel_ready(columns), result, segments.ptr, places,
            _numbers(rows), _numbers(out_rows), _factors(scale),
        )  # fmt: skip
    else:
        matrices = matrices.transpose(2, 3) if transposed else matrices
        lengths = _lengths(segments, places)
        segment_products.linear(table, matrices, result, lengths, rows, out_rows, scale)
    return out


@torch.no_grad()
def typed_weight_grad(
    x: Tensor,
    grad: Tensor,
    segments: Segmented,
    *,
    x_rows: Tensor | None = None,
    grad_rows: Tensor | None = None,
    scale: Tensor | None = None,
    heads: bool = False,
    way: Way | None = None,
) -> Tensor:
    """Gradient of :func:`typed_linear` towards the weights.

    For each type the sum of ``scale[i] * outer(x[x_rows[i]], grad[grad_rows[i]])`` over its places.

    Parameters
    ----------
    x : Tensor [N, I] or [N, H, I]
    grad : Tensor [K, O] or [K, H, O]
    segments : Segmented
        Of T types and M places.
    x_rows, grad_rows : int32 or int64 [M], optional
        By default the place itself.
    scale : Tensor [M], optional
    heads : bool
        Each head has a weight of its own; else the heads are summed as well.
    way : str, optional
        As for :func:`typed_linear`.

    Returns
    -------
    Tensor [T, I, O], or [T, H, I, O] with ``heads``
        In the dtype of x, summed in float32 (float64 for float64) in an order that the numbers of
        rows fix; 0 for types without places.

    Raises
    ------
    InvalidArgument
        Shapes or dtypes do not fit.
    """
    if x.shape[1:-1] != grad.shape[1:-1] or x.dim() < 2 or x.dtype != grad.dtype:
        got = f"{x.dtype} {list(x.shape)} and {grad.dtype} {list(grad.shape)}"
        raise invalid("x, grad", "do not fit", got, "[N, H, I] and [K, H, O] of one dtype")
    if heads and x.dim() != 3:
        raise invalid("x", "no heads", list(x.shape), "[N, H, I]")
    places = _places(segments, x, x_rows, grad_rows, scale)
    types, inner, outer = len(segments.ptr) - 1, x.shape[-1], grad.shape[-1]
    shape = (types, *(x.shape[1:2] if heads else ()), inner, outer)
    if not places or not inner or not outer:
        return x.new_zeros(shape)
    gathered = x_rows is not None or grad_rows is not None
    if way is None:
        way = choose(_product(x, types, inner, outer, gathered, heads))
    if way in ("mm", "grouped"):
        left = x if scale is None else x * _broadcast(scale, x)
        if way == "grouped":
            return _grouped(left.contiguous().t(), grad.contiguous(), segments)
        return torch.mm(left.reshape(-1, inner).t(), grad.reshape(-1, outer)).view(shape)
    left, right = _with_heads(x), _with_heads(grad)
    if way == "kernel":
        found = gemm.weight_grad(
            kernel_ready(left), kernel_ready(right), segments.ptr, places,
            _numbers(x_rows), _numbers(grad_rows), _factors(scale), heads,
        )  # fmt: skip
    else:
        found = segment_products.weight_grad(
            left, right, _lengths(segments, places), x_rows, grad_rows, scale, heads
        )
    return found.view(shape)


def _by_torch(
    way: Way, x: Tensor, weight: Tensor, segments: Segmented, scale: Tensor | None
) -> Tensor:
    """One product of torch for all rows, which are read and written in order."""
    if way == "grouped":
        out = _grouped(x.contiguous(), weight, segments)
    else:
        out = torch.matmul(x, weight[0])
    return out if scale is None else out.mul_(_broadcast(scale, out))


def _grouped(left: Tensor, right: Tensor, segments: Segmented) -> Tensor:
    return torch.nn.functional.grouped_mm(left, right, offs=segments.ptr[1:].int())


@lru_cache(maxsize=64)
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def _product(x: Tensor, types: int, inner: int, outer: int, gathered: bool, heads: bool) -> Product:
    capability = _capability(x.device) if x.is_cuda else None
    scattered = out_of_order(x.dim(), types, gathered)
    return Product(
        x.dtype, types, inner, outer, scattered, heads, gemm.has_kernels(x), capability
    )  # fmt: skip


def _with_heads(x: Tensor) -> Tensor:
    """[N, ..., I] as [N, H, I]."""
    return x if x.dim() == 3 else x.reshape(x.shape[0], x.shape[1:-1].numel(), x.shape[-1])


def _broadcast(scale: Tensor, like: Tensor) -> Tensor:
    return scale.to(like.dtype).view(-1, *(1,) * (like.dim() - 1))


def _numbers(index: Tensor | None) -> Tensor | None:
    return None if index is None else index.int().contiguous()


def _factors(scale: Tensor | None) -> Tensor | None:
    return None if scale is None else scale.float().contiguous()


def _places(segments: Segmented, x: Tensor, *by_place: Tensor | None) -> int:
    """Number of places: as many as each of these tensors has values, else as x has rows."""
    given = [len(t) for t in by_place if t is not None]
    if any(index is not None and index.dim() != 1 for index in by_place) or len(set(given)) > 1:
        shapes = [tuple(t.shape) for t in by_place if t is not None]
        raise invalid("rows, scale", "wrong shape", shapes, "one value a place")
    places = given[0] if given else len(x)
    if segments.lengths is not None and sum(segments.lengths) != places:
        raise invalid("segments", "another number of places", sum(segments.lengths), places)
    if given and all(index is None for index in by_place[:2]) and len(x) != places:
        raise invalid("scale", "wrong shape", places, f"{len(x)}, one value a row")
    return places


def _check_weight(
    x: Tensor, weight: Tensor, segments: Segmented, transposed: bool
) -> tuple[bool, int, int]:
    """Whether each head has a weight, and the columns of x and of the result."""
    heads, types = weight.dim() == 4, len(segments.ptr) - 1
    expected = f"[{types}, I, O] or [{types}, H, I, O]"
    if weight.dim() not in (3, 4) or len(weight) != types:
        raise invalid("weight", "wrong shape", list(weight.shape), expected)
    inner, outer = weight.shape[-2:]
    if transposed:
        inner, outer = outer, inner
    fits = x.dim() == 3 and x.shape[1] == weight.shape[1] if heads else x.dim() >= 2
    if not fits or x.shape[-1] != inner or x.dtype != weight.dtype:
        got = f"{x.dtype} {list(x.shape)} and {weight.dtype} {list(weight.shape)}"
        raise invalid("x, weight", "do not fit", got, "one dtype, [N, I] or [N, H, I]")
    if max(inner, outer) * x.shape[1:-1].numel() * x.element_size() >= MAX_ROW_BYTES:
        raise invalid("x, weight", "rows too wide", list(weight.shape), f"below {MAX_ROW_BYTES} B")
    return heads, inner, outer


def _lengths(segments: Segmented, places: int) -> Sequence[int]:
    """Places of each type; waits for the device where nobody knows them."""
    lengths = segments.lengths
    if lengths is None:
        lengths = segments.ptr.diff().tolist()
        if min(lengths, default=0) < 0 or sum(lengths) != places:
            raise invalid("ptr", "not the bounds of segments", f"lengths {lengths}",
                          f"ascending, from 0 to {places}")  # fmt: skip
    return lengths

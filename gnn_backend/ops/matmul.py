"""Rows times the matrix of their segment, with gradients of any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.ops.softmax_attention import refuse_batch
from gnn_backend.ops.typed_linear import Bounds, typed_linear, typed_weight_grad

_INTEGERS = (torch.int32, torch.int64)


def segment_matmul(x: Tensor, weight: Tensor, ptr: Tensor) -> Tensor:
    r"""Multiply each segment of rows with its own matrix.

    .. math:: y_i = x_i W_r, \quad \mathrm{ptr}_r \le i < \mathrm{ptr}_{r+1}

    Parameters
    ----------
    x : Tensor [N, I]
        float32, float64, bfloat16 or float16.
    weight : Tensor [R, I, O]
        In the dtype of x.
    ptr : int32 or int64 Tensor [R + 1]
        Bounds of the segments: ascending, from 0 to N. In CPU memory they are checked; on a GPU
        nothing waits for them, and rows outside every segment are left undefined.

    Returns
    -------
    Tensor [N, O]
        Products are added in float32, of float64 in float64; float32 is multiplied as tf32 where
        ``torch.backends.cuda.matmul`` allows it. Equal inputs give equal bits, also of gradients.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit, or ``ptr`` are not the bounds of segments.
    """
    _check(x, weight, ptr)
    if ptr.device != x.device:
        ptr = ptr.to(x.device, non_blocking=True)
    return _SegmentMatmul.apply(x, weight, ptr, False)


def _check(x: Tensor, weight: Tensor, ptr: Tensor) -> None:
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[1]:
        got = f"{list(x.shape)} and {list(weight.shape)}"
        raise invalid("x, weight", "wrong shape", got, "[N, I] and [R, I, O]")
    if x.dtype != weight.dtype or not x.is_floating_point():
        raise invalid("x, weight", "wrong dtypes", f"{x.dtype} and {weight.dtype}",
                      "one floating-point dtype", "Convert one of them")  # fmt: skip
    if x.device != weight.device:
        raise invalid("weight", "not on the device of x", weight.device, x.device)
    if ptr.dtype not in _INTEGERS or ptr.shape != (len(weight) + 1,):
        raise invalid("ptr", "wrong dtype or shape", f"{ptr.dtype} {list(ptr.shape)}",
                      f"int32 or int64 [{len(weight) + 1}]")  # fmt: skip
    if ptr.device.type == "cpu":
        bounds = ptr.tolist()
        if bounds[0] != 0 or bounds[-1] != len(x) or bounds != sorted(bounds):
            raise invalid("ptr", "not the bounds of segments", bounds,
                          f"ascending, from 0 to {len(x)}")  # fmt: skip
    elif ptr.device != x.device:
        raise invalid("ptr", "not on the device of x", ptr.device, f"{x.device} or cpu")


class _SegmentMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ptr: Tensor, transposed: bool) -> Tensor:
        ctx.save_for_backward(x, weight, ptr)
        ctx.transposed = transposed
        return typed_linear(x, weight, Bounds(ptr), transposed=transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        refuse_batch(grad)
        x, weight, ptr = ctx.saved_tensors
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _SegmentMatmul.apply(grad, weight, ptr, not ctx.transposed)
        if ctx.needs_input_grad[1]:
            sides = (grad, x) if ctx.transposed else (x, grad)
            of_weight = _WeightGrad.apply(*sides, ptr)
        return of_x, of_weight, None, None


class _WeightGrad(torch.autograd.Function):
    """The gradient of the weights; as it is bilinear, its gradients are products of segments."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grad: Tensor, ptr: Tensor) -> Tensor:
        ctx.save_for_backward(x, grad, ptr)
        return typed_weight_grad(x, grad, Bounds(ptr))

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        refuse_batch(outer)
        x, grad, ptr = ctx.saved_tensors
        of_x = of_grad = None
        if ctx.needs_input_grad[0]:
            of_x = _SegmentMatmul.apply(grad, outer, ptr, True)
        if ctx.needs_input_grad[1]:
            of_grad = _SegmentMatmul.apply(x, outer, ptr, False)
        return of_x, of_grad, None

"""Fused attention operators: softmax-weighted sums that never store an edge-wise score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported, invalid
from gnn_backend.graph import Graph
from gnn_backend.ops.functors import FUNCTORS, Functor
from gnn_backend.runtime.launch import Cotangents, Engine, Saved, engine_for

_ALIGNMENT = 16  # bytes; the kernels read rows in 16-byte accesses


def gatv2_attention(
    graph: Graph, x_src: Tensor, x_dst: Tensor, att: Tensor, *, negative_slope: float = 0.2
) -> Tensor:
    r"""GATv2 attention (Brody, Alon and Yahav, "How attentive are graph attention networks?").

    .. math::
        \ell_{e,h} = \sum_d a_{h,d} \, \mathrm{LeakyReLU}(x^{src}_{j,h,d} + x^{dst}_{i,h,d}),
        \qquad
        y_{i,h} = \sum_{e = (j \to i)} \mathrm{softmax}_i(\ell)_{e,h} \, x^{src}_{j,h}

    Parameters
    ----------
    graph : Graph
        Edges source j -> destination i.
    x_src : Tensor [num_src, H, D]
        Projected source features, which are the values as well.
    x_dst : Tensor [num_dst, H, D]
        Projected destination features.
    att : Tensor [H, D]
        Attention vector.
    negative_slope : float
        Slope of the leaky-relu below 0 (its derivative at 0 is the slope, as in torch).

    Returns
    -------
    Tensor [num_dst, H, D]
        In the dtype of the inputs (float32, bfloat16, float16; float64 on the CPU target);
        accumulated in float32. Destinations without in-edges are 0. Equal inputs give equal bits,
        forward and backward. Second derivatives are right (through plain torch operations).

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit each other or the graph.
    Unsupported
        No kernel for this dtype, device or head dimension; ``reason`` says which.
    """
    operands = {"x_src": x_src, "x_dst": x_dst, "att": att}
    _check(graph, operands, negative_slope)
    return softmax_attention(
        FUNCTORS["gatv2"], graph, operands, {"negative_slope": float(negative_slope)}
    )


def softmax_attention(
    functor: Functor, graph: Graph, operands: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> Tensor:
    """Softmax-weighted sum of any functor; the operands are already checked."""
    first = operands[functor.src[0]]
    engine = engine_for(first.device, first.dtype)  # refuses before anything is recorded
    ordered = [operands[name] for name in functor.operands]
    return _SoftmaxAttention.apply(graph, functor, dict(scalars), engine, *ordered)  # type: ignore[no-any-return]


class _SoftmaxAttention(torch.autograd.Function):
    """Saves the operands, the output and the log-sum-exp; nothing edge-wise."""

    @staticmethod
    def forward(
        ctx: Any,
        graph: Graph,
        functor: Functor,
        scalars: dict[str, float],
        engine: Engine,
        *operands: Tensor,
    ) -> Tensor:
        ready = {n: kernel_ready(t) for n, t in zip(functor.operands, operands, strict=True)}
        out, lse, _ = engine.softmax_forward(functor, graph, ready, scalars)
        ctx.graph, ctx.functor, ctx.scalars, ctx.engine = graph, functor, scalars, engine
        ctx.save_for_backward(*operands, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        functor, graph = ctx.functor, ctx.graph
        *operands, out, lse = ctx.saved_tensors
        names = functor.operands
        needed = [n for n, need in zip(names, ctx.needs_input_grad[4:], strict=True) if need]
        refuse_batch(grad_out)
        if torch.is_grad_enabled():  # create_graph=True: the gradient must have a graph itself
            grads = _twin_gradients(
                functor,
                graph,
                dict(zip(names, operands, strict=True)),
                ctx.scalars,
                needed,
                grad_out,
            )
        else:
            ready = {n: kernel_ready(t) for n, t in zip(names, operands, strict=True)}
            grads = ctx.engine.softmax_backward(
                functor, graph, ready, ctx.scalars, Saved(out, lse),
                Cotangents(kernel_ready(grad_out)), frozenset(needed),
            )  # fmt: skip
        return (None, None, None, None, *(grads.get(name) for name in names))


def _twin_gradients(
    functor: Functor,
    graph: Graph,
    operands: dict[str, Tensor],
    scalars: Mapping[str, float],
    needed: list[str],
    grad_out: Tensor,
) -> dict[str, Tensor]:
    """Differentiable gradients, by differentiating the plain torch twin in float32 or wider."""
    wide = torch.promote_types(grad_out.dtype, torch.float32)
    # Views, as one tensor may be given twice and each use has a gradient of its own.
    operands = {n: t.view_as(t) for n, t in operands.items()}
    out = functor.twin(graph, {n: t.to(wide) for n, t in operands.items()}, scalars)
    grads = torch.autograd.grad(
        out, [operands[n] for n in needed], grad_out.to(wide), create_graph=True, allow_unused=True
    )
    pairs = zip(needed, grads, strict=True)
    return {n: torch.zeros_like(operands[n]) if g is None else g for n, g in pairs}


def refuse_batch(grad_out: Tensor) -> None:
    """Refuse a batch of cotangents, which has no storage that a kernel could read."""
    functorch = torch._C._functorch
    if functorch.is_batchedtensor(grad_out) or functorch.is_legacy_batchedtensor(grad_out):
        raise Unsupported(
            "transforms",
            "got a batch of gradients (is_grads_batched or a vectorized jacobian), expected one; "
            "differentiate in a loop, or call the layer inside gnn_backend.disabled()",
        )


def kernel_ready(tensor: Tensor) -> Tensor:
    """Contiguous, aligned for vector accesses, no lazy negation; a copy only where it is not.

    Autograd must not be recording, as in the methods of an autograd function.
    """
    if not tensor.is_contiguous() or tensor.is_neg():
        tensor = tensor.contiguous().resolve_neg()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


def _check(graph: Graph, operands: Mapping[str, Tensor], negative_slope: float) -> None:
    if not isinstance(graph, Graph):
        raise invalid("graph", "not a graph", type(graph).__name__, "a gnn_backend.graph.Graph")
    for name, operand in operands.items():
        if not isinstance(operand, Tensor):
            raise invalid(name, "not a tensor", type(operand).__name__, "a torch.Tensor")
    x_src = operands["x_src"]
    if x_src.dim() != 3:
        raise invalid("x_src", "wrong shape", tuple(x_src.shape), "[num_src, heads, dim]")
    heads, dim = x_src.shape[1:]
    dtype, device = x_src.dtype, graph.device
    expected = {
        "x_src": (graph.num_src, heads, dim),
        "x_dst": (graph.num_dst, heads, dim),
        "att": (heads, dim),
    }
    for name, tensor in operands.items():
        if tensor.shape != expected[name]:
            raise invalid(name, "wrong shape", tuple(tensor.shape), expected[name])
        if tensor.dtype != dtype:
            raise invalid(name, "mixed dtypes", tensor.dtype, f"{dtype}, as x_src")
        if tensor.device != device:
            raise invalid(name, "not on the graph's device", tensor.device, device)
    if not x_src.is_floating_point():
        raise invalid("x_src", "wrong dtype", x_src.dtype, "a floating-point dtype")
    if not isinstance(negative_slope, (int, float)) or not math.isfinite(negative_slope):
        raise invalid("negative_slope", "not a finite number", negative_slope, "a finite float")


__all__ = ["Unsupported", "gatv2_attention", "softmax_attention"]

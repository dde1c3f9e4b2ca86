"""Attention with the linear projections before it and the combination of heads after it.

One autograd node for all of it. Where a graph is small, the kernels take a few microseconds and
what autograd does for each of a dozen small operations takes most of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.ops.functors import Functor
from gnn_backend.ops.heads import Heads, merge_heads, unmerge_gradient
from gnn_backend.ops.softmax_attention import attention_twin, kernel_ready, refuse_batch
from gnn_backend.runtime.launch import Cotangents, Engine, Saved, engine_for
from gnn_backend.runtime.random import Dropout, draw_dropout


class Projection(NamedTuple):
    """A linear map: weight [H * D, F] and bias [H * D] or None."""

    weight: Tensor
    bias: Tensor | None = None


class _Call(NamedTuple):
    """What a call has beside its tensors."""

    graph: Graph
    functor: Functor
    scalars: Mapping[str, float]
    engine: Engine
    heads: Heads
    dropout: Dropout | None


class _Inputs(NamedTuple):
    """The tensors of a call; what is None is told in :func:`projected_attention`."""

    h_src: Tensor
    h_dst: Tensor | None
    w_src: Tensor
    b_src: Tensor | None
    w_dst: Tensor | None
    b_dst: Tensor | None
    att: Tensor
    residual: Tensor | None = None
    bias: Tensor | None = None


_ADDED = _Inputs._fields.index("residual")  # this and the next are added to attention's result


class _Needs(NamedTuple):
    """Which of the inputs want a gradient."""

    h_src: bool
    h_dst: bool
    w_src: bool
    b_src: bool
    w_dst: bool
    b_dst: bool
    att: bool
    residual: bool
    bias: bool


def projected_attention(
    functor: Functor,
    graph: Graph,
    h_src: Tensor,
    src: Projection,
    att: Tensor,
    scalars: Mapping[str, float],
    *,
    h_dst: Tensor | None = None,
    dst: Projection | None = None,
    heads: Heads = "keep",
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Project features, attend, combine the heads, add the residual and the bias.

    Equal to :func:`gnn_backend.ops.attention.softmax_attention` between
    ``torch.nn.functional.linear`` and plain additions, within rounding of the gradients' sums;
    it stores no more for backward.

    Parameters
    ----------
    functor : Functor
        One table each at the source and the destination, and one parameter.
    graph : Graph
    h_src : Tensor [num_src, F]
    src : Projection
    att : Tensor [H, D] or [1, H, D]
    scalars : mapping of str to float
        Of the functor.
    h_dst : Tensor [num_dst, F_dst], optional
        By default the first ``num_dst`` rows of ``h_src``.
    dst : Projection, optional
        By default the destinations' projected features are those of the sources.
    heads : {"keep", "concat", "mean"}
        Shape of the result: [num_dst, H, D], [num_dst, H * D] or [num_dst, D].
    residual : Tensor in the shape of the result, optional
    bias : Tensor [columns of the result], optional
    dropout_p : float
        Probability that a weight is dropped.

    Returns
    -------
    Tensor
        In the dtype that all tensors have in common; the caller's to change in place.

    Raises
    ------
    InvalidArgument
        Shapes, dtypes or devices do not fit each other or the graph.
    Unsupported
        No kernel for this dtype, device or head dimension.
    """
    w_dst, b_dst = (None, None) if dst is None else dst
    inputs = _Inputs(h_src, h_dst, src.weight, src.bias, w_dst, b_dst, att, residual, bias)
    _check(graph, inputs, heads)
    engine = engine_for(att.device, att.dtype)
    dropout = draw_dropout(dropout_p, att.device) if dropout_p else None
    call = _Call(graph, functor, scalars, engine, heads, dropout)
    if torch.is_grad_enabled():
        return _ProjectedAttention.apply(call, *inputs)  # type: ignore[no-any-return]
    out, _, _ = _attend(call, inputs)
    return _combine(out, call.heads, residual, bias)


class _ProjectedAttention(torch.autograd.Function):
    """Saves the inputs, the projected features, the output and the log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor | None) -> Tensor:
        inputs = _Inputs(*tensors)  # type: ignore[arg-type]
        out, lse, operands = _attend(call, inputs)
        ctx.call = call
        # What is added to the result is not needed again.
        ctx.save_for_backward(*inputs[:_ADDED], *operands, out, lse)
        result = _combine(out, call.heads, inputs.residual, inputs.bias)
        # Backward reads `out`, and callers may change a result in place.
        return result.clone() if result.data_ptr() == out.data_ptr() else result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_batch(grad)
        needs = _Needs(*ctx.needs_input_grad[1:])
        if torch.is_grad_enabled():  # create_graph=True: the gradient must have a graph itself
            found = _twin_gradients(ctx.call, _Inputs(*ctx.saved_tensors[:_ADDED]), needs, grad)
        elif torch.is_autocast_enabled(grad.device.type):  # compute in forward's dtype
            with torch.autocast(grad.device.type, enabled=False):
                found = _gradients(ctx, needs, grad)
        else:
            found = _gradients(ctx, needs, grad)
        return (
            None,
            *found,
            grad if needs.residual else None,
            grad.sum(0) if needs.bias else None,
        )


def _attend(call: _Call, inputs: _Inputs) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Output and log-sum-exp of attention, and the projected features as the kernels read them."""
    x_src, x_dst = _project(call.graph, inputs)
    _check_projected(x_src, x_dst, inputs.att)
    ready = kernel_ready(x_src), kernel_ready(x_dst)
    operands = _named(call, *ready, kernel_ready(inputs.att))
    out, lse, _ = call.engine.softmax_forward(
        call.functor, call.graph, operands, call.scalars, call.dropout
    )
    return out, lse, ready


def _named(call: _Call, x_src: Tensor, x_dst: Tensor, att: Tensor) -> dict[str, Tensor]:
    """The functor's operands. A leading axis of the parameter does not matter to any target."""
    return dict(zip(call.functor.operands, (x_src, x_dst, att), strict=True))


def _project(graph: Graph, inputs: _Inputs) -> tuple[Tensor, Tensor]:
    """Projected sources and destinations [N, H, D]."""
    heads, dim = inputs.att.shape[-2:]
    h_src, h_dst, rows = inputs.h_src, inputs.h_dst, graph.num_dst
    x_src = F.linear(h_src, inputs.w_src, inputs.b_src).view(h_src.shape[0], heads, dim)
    if inputs.w_dst is None:
        return x_src, _first(x_src, rows)
    h_dst = _first(h_src, rows) if h_dst is None else h_dst
    return x_src, F.linear(h_dst, inputs.w_dst, inputs.b_dst).view(rows, heads, dim)


def _first(table: Tensor, rows: int) -> Tensor:
    return table if table.shape[0] == rows else table[:rows]


def _combine(out: Tensor, heads: Heads, residual: Tensor | None, bias: Tensor | None) -> Tensor:
    out = merge_heads(out, heads)
    if residual is not None:
        out = out + residual
    return out if bias is None else out + bias


def _gradients(ctx: Any, needs: _Needs, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of the inputs up to ``att``, None for those that want none."""
    call: _Call = ctx.call
    saved = list(ctx.saved_tensors)
    inputs, saved = _Inputs(*saved[:_ADDED]), saved[_ADDED:]
    graph, shared = call.graph, inputs.w_dst is None
    found = _attention_gradients(call, inputs, needs, saved, grad)
    # What only attention read is freed before the projections' gradients are allocated.
    saved.clear()
    if hasattr(ctx, "maybe_clear_saved_tensors"):  # PyTorch 2.5; it heeds retain_graph
        ctx.maybe_clear_saved_tensors()
    of_src, of_dst, of_att = (found.pop(name, None) for name in call.functor.operands)
    if of_src is not None:
        of_src = of_src.flatten(1)
        if shared and of_dst is not None:
            _first(of_src, graph.num_dst).add_(of_dst.flatten(1))
    h_src, w_src, b_src = _linear_gradients(
        of_src, inputs.h_src, inputs.w_src, (needs.h_src, needs.w_src, needs.b_src)
    )
    del of_src
    h_dst = w_dst = b_dst = None
    if of_dst is not None and inputs.w_dst is not None:
        of_dst, own = of_dst.flatten(1), inputs.h_dst
        rows = _first(inputs.h_src, graph.num_dst) if own is None else own
        h_dst, w_dst, b_dst = _linear_gradients(
            of_dst, rows, inputs.w_dst, (needs.h_dst, needs.w_dst, needs.b_dst)
        )
        if own is None and h_src is not None:
            _first(h_src, graph.num_dst).addmm_(of_dst, inputs.w_dst)
    return h_src, h_dst, w_src, b_src, w_dst, b_dst, of_att


def _attention_gradients(
    call: _Call, inputs: _Inputs, needs: _Needs, saved: list[Tensor], grad: Tensor
) -> dict[str, Tensor]:
    """Gradients of the projected features and of the attention vector that are needed, by name."""
    x_src, x_dst, out, lse = saved
    of_src = needs.h_src or needs.w_src or needs.b_src
    if inputs.w_dst is None:
        of_dst = of_src
    else:
        rows = needs.h_src if inputs.h_dst is None else needs.h_dst
        of_dst = rows or needs.w_dst or needs.b_dst
    names = call.functor.operands
    pairs = zip(names, (of_src, of_dst, needs.att), strict=True)
    wanted = frozenset(name for name, need in pairs if need)
    if not wanted:
        return {}
    cotangent = kernel_ready(unmerge_gradient(grad, call.heads, out.shape[1]))
    ready = _named(call, x_src, x_dst, kernel_ready(inputs.att))
    return call.engine.softmax_backward(
        call.functor, call.graph, ready, call.scalars,
        Saved(out, lse), Cotangents(cotangent), wanted, call.dropout,
    )  # fmt: skip


def _linear_gradients(
    grad: Tensor | None, features: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a linear map's features, weight and bias."""
    if grad is None:
        return None, None, None
    return (
        torch.mm(grad, weight) if needs[0] else None,
        torch.mm(grad.t(), features) if needs[1] else None,
        grad.sum(0) if needs[2] else None,
    )


def _twin_gradients(
    call: _Call, inputs: _Inputs, needs: _Needs, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """What :func:`_gradients` returns, but differentiable: through the functor's torch twin."""
    wide = torch.promote_types(grad.dtype, torch.float32)
    # Views, as one tensor may be given twice and each use has a gradient of its own.
    views = _Inputs(*(None if t is None else t.view_as(t) for t in inputs))  # type: ignore[arg-type]
    needed = [t for t, need in zip(views, needs[:_ADDED], strict=False) if need and t is not None]
    if not needed:
        return (None,) * _ADDED
    x_src, x_dst = _project(call.graph, views)
    operands = _named(call, x_src.to(wide), x_dst.to(wide), views.att.to(wide))
    attended = attention_twin(call.functor, call.graph, operands, call.scalars, call.dropout)
    result = merge_heads(attended.out, call.heads)
    found = torch.autograd.grad(
        result, needed, grad.to(wide), create_graph=True, allow_unused=True, materialize_grads=True
    )
    grads = iter(found)
    return tuple(next(grads) if need else None for need in needs[:_ADDED])


def _check(graph: Graph, inputs: _Inputs, heads: Heads) -> None:
    """Refuse what would be misread; torch itself refuses weights that do not fit the features."""
    att, h_src, h_dst = inputs.att, inputs.h_src, inputs.h_dst
    if att.dim() not in (2, 3) or (att.dim() == 3 and att.shape[0] != 1):
        raise invalid("att", "wrong shape", tuple(att.shape), "[heads, dim] or [1, heads, dim]")
    if inputs.w_dst is None and h_dst is not None:
        raise invalid("h_dst", "given without a projection", "dst=None", "both or neither")
    num_heads, dim = att.shape[-2:]
    rows, width, own = graph.num_dst, num_heads * dim, h_src.shape[0]
    if own != graph.num_src:
        raise invalid("h_src", "wrong number of rows", own, graph.num_src)
    if h_dst is not None:
        own = h_dst.shape[0]
    if own != rows and (h_dst is not None or own < rows):
        raise invalid("h_dst", "wrong number of rows", own, rows)
    for name, weight in (("w_src", inputs.w_src), ("w_dst", inputs.w_dst)):
        if weight is not None and weight.shape[0] != width:
            raise invalid(name, "wrong shape", tuple(weight.shape), f"[{width}, features]")
    if att.device != graph.device:
        raise invalid("att", "not on the graph's device", att.device, graph.device)
    if inputs.bias is not None or inputs.residual is not None:
        columns = (dim,) if heads == "mean" else (width,) if heads == "concat" else (num_heads, dim)
        _check_added("bias", inputs.bias, columns, att)
        _check_added("residual", inputs.residual, (rows, *columns), att)


def _check_added(name: str, added: Tensor | None, shape: tuple[int, ...], att: Tensor) -> None:
    if added is not None and added.shape != shape:
        raise invalid(name, "wrong shape", tuple(added.shape), shape)
    if added is not None and added.dtype is not att.dtype:
        raise invalid(name, "mixed dtypes", added.dtype, f"{att.dtype}, as att")


def _check_projected(x_src: Tensor, x_dst: Tensor, att: Tensor) -> None:
    """Refuse what the kernels would misread; autocast decides the dtype of a projection as well."""
    for name, table in (("h_src", x_src), ("h_dst", x_dst)):
        if table.dtype is not att.dtype:
            raise invalid(
                name, "mixed dtypes", f"projected to {table.dtype}", f"{att.dtype}, as att"
            )
        if table.device != att.device:
            raise invalid(name, "mixed devices", table.device, f"{att.device}, as att")

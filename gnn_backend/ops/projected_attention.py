"""Attention with the linear projections before it and the combination of heads after it.

One autograd node for all of it. Where a graph is small, the kernels take a few microseconds and
what autograd does for each of a dozen small operations takes most of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops.attention_forms import Asked, Ends, Form, Gradients, first
from gnn_backend.ops.dropout import draw_mask
from gnn_backend.ops.heads import Heads, merge_heads, unmerge_gradient
from gnn_backend.ops.projected_checks import Given, check_inputs, check_projected
from gnn_backend.ops.softmax_attention import attention_twin, kernel_ready, refuse_batch
from gnn_backend.runtime.launch import Cotangents, Engine, Saved, engine_for
from gnn_backend.runtime.pages import fresh, fresh_like
from gnn_backend.runtime.random import Dropout
from gnn_backend.runtime.reordering import arranged


class Projection(NamedTuple):
    """A linear map: weight [H * D, F] and bias [H * D] or None."""

    weight: Tensor
    bias: Tensor | None = None


class _Call(NamedTuple):
    """What a call has beside its tensors."""

    graph: Graph
    form: Form
    scalars: Mapping[str, float]
    engine: Engine
    num_heads: int
    heads: Heads
    dropout: Dropout | None


class _Inputs(NamedTuple):
    """The tensors of a call; what is None is told in :func:`projected_attention`."""

    h_src: Tensor
    h_dst: Tensor | None
    w_src: Tensor | None
    b_src: Tensor | None
    w_dst: Tensor | None
    b_dst: Tensor | None
    first_param: Tensor | None
    second_param: Tensor | None
    residual: Tensor | None = None
    bias: Tensor | None = None

    @property
    def params(self) -> tuple[Tensor, ...]:
        return tuple(p for p in (self.first_param, self.second_param) if p is not None)


_ADDED = _Inputs._fields.index("residual")  # this and the next are added to attention's result


class _Needs(NamedTuple):
    """Which of the inputs want a gradient."""

    h_src: bool
    h_dst: bool
    w_src: bool
    b_src: bool
    w_dst: bool
    b_dst: bool
    first_param: bool
    second_param: bool
    residual: bool
    bias: bool


def projected_attention(
    form: Form,
    graph: Graph,
    h_src: Tensor,
    src: Projection | None,
    params: tuple[Tensor, ...],
    scalars: Mapping[str, float],
    *,
    num_heads: int,
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
    form : Form
        Of the attention: how operands come from projected features.
    graph : Graph
    h_src : Tensor [num_src, F]
    src : Projection or None
        None: the features are attended to as they are.
    params : tuple of Tensor
        As many as the form has, of the shape that it says.
    scalars : mapping of str to float
        Of the functor.
    num_heads : int
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
    w_src, b_src = (None, None) if src is None else src
    w_dst, b_dst = (None, None) if dst is None else dst
    given = Given(h_src, h_dst, w_src, w_dst, residual, bias)
    check_inputs(graph, form, params, num_heads, heads, given)
    like = given.reference(params)
    one, two = (*params, None, None)[:2]
    inputs = _Inputs(h_src, h_dst, w_src, b_src, w_dst, b_dst, one, two, residual, bias)
    engine = engine_for(like.device, like.dtype)
    dropout = draw_mask(dropout_p, graph, num_heads)
    graph = arranged(graph, like, (h_src if w_src is None else w_src.t()).shape[1])
    call = _Call(graph, form, scalars, engine, num_heads, heads, dropout)
    if torch.is_grad_enabled():
        return _ProjectedAttention.apply(call, *inputs)  # type: ignore[no-any-return]
    out, *_ = _attend(call, inputs)
    return _combine(out, call.heads, residual, bias)


class _ProjectedAttention(torch.autograd.Function):
    """Saves the inputs, the projected features, the output and the log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor | None) -> Tensor:
        inputs = _Inputs(*tensors)  # type: ignore[arg-type]
        out, lse, ends, derived = _attend(call, inputs)
        ctx.call, ctx.shared = call, ends.shared
        # What is added to the result is not needed again.
        ctx.save_for_backward(*inputs[:_ADDED], ends.src, ends.dst, out, lse, *derived)
        result = _combine(out, call.heads, inputs.residual, inputs.bias)
        # Backward reads `out`, and callers may change a result in place.
        return _copied(result) if result.data_ptr() == out.data_ptr() else result

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


def _attend(call: _Call, inputs: _Inputs) -> tuple[Tensor, Tensor, Ends, tuple[Tensor, ...]]:
    """Output and log-sum-exp of attention, the projected features and what derives of them.

    The features are as the kernels read them.
    """
    found = _project(call, inputs, _linear)
    check_projected(found.src, found.dst, inputs.params)
    src = kernel_ready(found.src)
    ends = Ends(src, src if found.dst is found.src else kernel_ready(found.dst), found.shared)
    derived = tuple(kernel_ready(t) for t in call.form.derived(ends, inputs.params))
    operands = _operands(call, ends, inputs, derived)
    out, lse, _ = call.engine.softmax_forward(
        call.form.functor, call.graph, operands, call.scalars, call.dropout
    )
    return out, lse, ends, derived


def _operands(
    call: _Call, ends: Ends, inputs: _Inputs, derived: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """The functor's operands. A leading axis of a parameter does not matter to any target."""
    return call.form.operands(ends, tuple(map(kernel_ready, inputs.params)), derived)


Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _project(call: _Call, inputs: _Inputs, linear: Linear) -> Ends:
    """Projected sources and destinations [N, H, D]."""
    h_src, h_dst, rows = inputs.h_src, inputs.h_dst, call.graph.num_dst
    x_src = h_src if inputs.w_src is None else linear(h_src, inputs.w_src, inputs.b_src)
    shape = call.num_heads, x_src.shape[1] // call.num_heads
    x_src = x_src.view(h_src.shape[0], *shape)
    if inputs.w_dst is None:
        return Ends(x_src, first(x_src, rows), True)
    h_dst = first(h_src, rows) if h_dst is None else h_dst
    x_dst = linear(h_dst, inputs.w_dst, inputs.b_dst).view(rows, *shape)
    return Ends(x_src, x_dst, False)


def _linear(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``torch.nn.functional.linear`` into fresh memory; autograd must not be recording."""
    device = features.device.type
    plain = device == "cpu" and features.dtype is weight.dtype and weight.is_cpu
    if not plain or features.dim() != 2 or torch.is_autocast_enabled(device):
        return F.linear(features, weight, bias)
    out = fresh(features.shape[0], weight.shape[0], dtype=features.dtype)
    if bias is None:
        return torch.mm(features, weight.t(), out=out)
    return torch.addmm(bias, features, weight.t(), out=out)


def _combine(out: Tensor, heads: Heads, residual: Tensor | None, bias: Tensor | None) -> Tensor:
    out, own = merge_heads(out, heads), heads == "mean"
    for added in (residual, bias):
        if added is not None:
            # Only what is ours alone may be added to in place: backward reads attention's result.
            target = out if own else fresh_like(out) if out.is_cpu else None
            out, own = torch.add(out, added, out=target), True
    return out


def _copied(tensor: Tensor) -> Tensor:
    return fresh_like(tensor).copy_(tensor) if tensor.is_cpu else tensor.clone()


def _gradients(ctx: Any, needs: _Needs, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of the inputs up to the parameters, None for those that want none."""
    call: _Call = ctx.call
    saved = list(ctx.saved_tensors)
    inputs, saved = _Inputs(*saved[:_ADDED]), saved[_ADDED:]
    found = _attention_gradients(call, inputs, needs, saved, ctx.shared, grad)
    of_src, of_dst, of_params = (None, None, ()) if found is None else found
    del found
    # What only attention read is freed before the projections' gradients are allocated.
    saved.clear()
    if hasattr(ctx, "maybe_clear_saved_tensors"):  # PyTorch 2.5; it heeds retain_graph
        ctx.maybe_clear_saved_tensors()
    params = (*of_params, None, None)[:2]
    of_src = None if of_src is None else of_src.flatten(1)
    if inputs.w_src is None:
        return of_src, None, None, None, None, None, *params
    h_src, w_src, b_src = _linear_gradients(
        of_src, inputs.h_src, inputs.w_src, (needs.h_src, needs.w_src, needs.b_src)
    )
    del of_src
    h_dst = w_dst = b_dst = None
    if of_dst is not None and inputs.w_dst is not None:
        of_dst, own = of_dst.flatten(1), inputs.h_dst
        rows = first(inputs.h_src, call.graph.num_dst) if own is None else own
        h_dst, w_dst, b_dst = _linear_gradients(
            of_dst, rows, inputs.w_dst, (needs.h_dst, needs.w_dst, needs.b_dst)
        )
        if own is None and h_src is not None:
            first(h_src, call.graph.num_dst).addmm_(of_dst, inputs.w_dst)
    return h_src, h_dst, w_src, b_src, w_dst, b_dst, *params


def _attention_gradients(
    call: _Call, inputs: _Inputs, needs: _Needs, saved: list[Tensor], shared: bool, grad: Tensor
) -> Gradients | None:
    """Gradients of the projected features and of the parameters that are needed."""
    x_src, x_dst, out, lse, *derived = saved
    of_src = needs.h_src or needs.w_src or needs.b_src
    if inputs.w_dst is None:
        of_dst = of_src
    else:
        rows = needs.h_src if inputs.h_dst is None else needs.h_dst
        of_dst = rows or needs.w_dst or needs.b_dst
    params = (needs.first_param, needs.second_param)[: call.form.params]
    asked = Asked(of_src, of_dst, params)
    wanted = call.form.wanted(asked)
    if not wanted:
        return None
    ends = Ends(x_src, x_dst, shared)
    cotangent = kernel_ready(unmerge_gradient(grad, call.heads, call.num_heads))
    found = call.engine.softmax_backward(
        call.form.functor, call.graph, _operands(call, ends, inputs, tuple(derived)), call.scalars,
        Saved(out, lse), Cotangents(cotangent), wanted, call.dropout,
    )  # fmt: skip
    return call.form.gradients(found, ends, inputs.params, tuple(derived), asked)


def _linear_gradients(
    grad: Tensor | None, features: Tensor, weight: Tensor, needs: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a linear map's features, weight and bias."""
    if grad is None:
        return None, None, None
    target = fresh_like(features) if needs[0] and features.is_cpu else None
    return (
        torch.mm(grad, weight, out=target) if needs[0] else None,
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
    found = _project(call, views, F.linear)
    ends = Ends(found.src.to(wide), found.dst.to(wide), found.shared)
    params = tuple(p.to(wide) for p in views.params)
    operands = call.form.operands(ends, params, call.form.derived(ends, params))
    attended = attention_twin(call.form.functor, call.graph, operands, call.scalars, call.dropout)
    result = merge_heads(attended.out, call.heads)
    grads = torch.autograd.grad(
        result, needed, grad.to(wide), create_graph=True, allow_unused=True, materialize_grads=True
    )
    by_input = iter(grads)
    return tuple(next(by_input) if need else None for need in needs[:_ADDED])

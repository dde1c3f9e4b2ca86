"""The autograd node of every attention operator, whatever its functor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.ops.functors import Functor
from gnn_backend.ops.twins import Attended, softmax_attention_twin
from gnn_backend.runtime.launch import Cotangents, Engine, Saved, engine_for
from gnn_backend.runtime.random import Dropout
from gnn_backend.runtime.reordering import arranged

_ALIGNMENT = 16  # bytes; the kernels read rows in 16-byte accesses


class _Call(NamedTuple):
    """What a call has beside its tensors, whose names are ``names``."""

    graph: Graph
    functor: Functor
    names: tuple[str, ...]
    scalars: Mapping[str, float]
    engine: Engine
    dropout: Dropout | None
    aggregate: bool
    weights: bool


def softmax_attention(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    dropout: Dropout | None = None,
    *,
    aggregate: bool = False,
    weights: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Softmax-weighted sums of any functor; the operands are already checked.

    Parameters
    ----------
    functor : Functor
    graph : Graph
    operands : mapping of str to Tensor
        All of ``functor.operands``, and of ``functor.optional`` those that were given.
    scalars : mapping of str to float
    dropout : Dropout, optional
    aggregate, weights : bool
        Return the sums of edge features, and the weights of the edges.

    Returns
    -------
    out : Tensor [num_dst, H, D]
    out_edge : Tensor [num_dst, H, F] or None
    weights : Tensor [E, H] or None
        After dropout, in the caller's edge order.
    """
    first = operands[functor.value]
    engine = engine_for(first.device, first.dtype)  # refuses before anything is recorded
    graph = arranged(graph, first, first[:1].numel())
    names = tuple(n for n in (*functor.operands, *functor.optional) if n in operands)
    call = _Call(graph, functor, names, dict(scalars), engine, dropout, aggregate, weights)
    given = [operands[n] for n in names]
    found = iter(_SoftmaxAttention.apply(call, *given) if observed(given) else _run(call, given)[0])
    out = next(found)
    return out, next(found) if aggregate else None, next(found) if weights else None


def observed(tensors: Iterable[Tensor | None]) -> bool:
    """Whether autograd or a transformation of torch has to know of what is done to these."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    return forward_mode or torch._C._functorch.peek_interpreter_stack() is not None


def _run(
    call: _Call, operands: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor, Tensor | None]]:
    """The results, and what backward wants beside the operands."""
    ready = {n: kernel_ready(t) for n, t in zip(call.names, operands, strict=True)}
    arguments = call.functor, call.graph, ready, call.scalars
    out, lse, out_edge = call.engine.softmax_forward(
        *arguments, call.dropout, aggregate=call.aggregate
    )
    results = [out] if out_edge is None else [out, out_edge]
    if call.weights:
        results.append(call.engine.softmax_weights(*arguments, lse, call.dropout))
    return tuple(results), (out, lse, out_edge)


class _SoftmaxAttention(torch.autograd.Function):
    """Saves the operands, the sums and the log-sum-exp; nothing edge-wise."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *operands: Tensor) -> tuple[Tensor, ...]:
        results, saved = _run(call, operands)
        ctx.call = call
        ctx.set_materialize_grads(False)  # an unused result costs nothing
        ctx.save_for_backward(*operands, *saved)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        *operands, out, lse, out_edge = ctx.saved_tensors
        needs = zip(call.names, ctx.needs_input_grad[1:], strict=True)
        needed = [name for name, need in needs if need]
        for grad in grads:
            if grad is not None:
                refuse_batch(grad)
        given = dict(zip(call.names, operands, strict=True))
        cotangents = _cotangents(call, grads)
        if torch.is_grad_enabled():  # create_graph=True: the gradient must have a graph itself
            found = _twin_gradients(call, given, needed, cotangents)
        elif all(grad is None for grad in cotangents):
            found = {}
        else:
            ready = {n: kernel_ready(t) for n, t in given.items()}
            grad_out, *others = (None if g is None else kernel_ready(g) for g in cotangents)
            found = call.engine.softmax_backward(
                call.functor, call.graph, ready, call.scalars, Saved(out, lse, out_edge),
                Cotangents(torch.zeros_like(out) if grad_out is None else grad_out, *others),
                frozenset(needed), call.dropout,
            )  # fmt: skip
        return (None, *(found.get(name) for name in call.names))


def _cotangents(
    call: _Call, grads: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of the sum, the sum of edge features, and the weights."""
    rest = iter(grads[1:])
    of_edge = next(rest) if call.aggregate else None
    return grads[0], of_edge, next(rest) if call.weights else None


def attention_twin(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    dropout: Dropout | None = None,
    *,
    aggregate: bool = False,
) -> Attended:
    """What :func:`softmax_attention` computes, in plain torch."""
    return softmax_attention_twin(
        functor.score, functor.value, graph, operands, scalars, dropout, aggregate=aggregate
    )


def _twin_gradients(
    call: _Call,
    operands: dict[str, Tensor],
    needed: list[str],
    cotangents: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> dict[str, Tensor]:
    """Differentiable gradients, by differentiating the plain torch twin in float32 or wider."""
    # Views, as one tensor may be given twice and each use has a gradient of its own.
    operands = {n: t.view_as(t) for n, t in operands.items()}
    wide = torch.promote_types(operands[call.functor.value].dtype, torch.float32)
    results = attention_twin(
        call.functor, call.graph, {n: t.to(wide) for n, t in operands.items()}, call.scalars,
        call.dropout, aggregate=call.aggregate,
    )  # fmt: skip
    pairs = [
        (result, grad.to(wide))
        for result, grad in zip(results, cotangents, strict=True)
        if grad is not None and result is not None
    ]
    if not pairs or not needed:
        return {}
    grads = torch.autograd.grad(
        [result for result, _ in pairs], [operands[n] for n in needed], [g for _, g in pairs],
        create_graph=True, allow_unused=True,
    )  # fmt: skip
    found = zip(needed, grads, strict=True)
    return {n: torch.zeros_like(operands[n]) if g is None else g for n, g in found}


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

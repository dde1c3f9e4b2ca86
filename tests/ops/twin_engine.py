"""An engine that runs the plain torch twins, to test what is above engines on its own."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ops import softmax_attention as module
from gnn_backend.ops.functors import Functor
from gnn_backend.profile import count_launch
from gnn_backend.runtime.launch import Cotangents, Saved
from gnn_backend.runtime.random import Dropout


def softmax_forward(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    dropout: Dropout | None = None,
    *,
    aggregate: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    count_launch("twin", "forward")
    found = module.attention_twin(functor, graph, operands, scalars, dropout, aggregate=aggregate)
    lse = torch.zeros(found.out.shape[:2])
    return found.out.contiguous(), lse, found.out_edge


def softmax_weights(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    lse: Tensor,
    dropout: Dropout | None = None,
) -> Tensor:
    return module.attention_twin(functor, graph, operands, scalars, dropout).attention


def softmax_backward(
    functor: Functor,
    graph: Graph,
    operands: Mapping[str, Tensor],
    scalars: Mapping[str, float],
    saved: Saved,
    cotangents: Cotangents,
    needs: frozenset[str],
    dropout: Dropout | None = None,
) -> dict[str, Tensor]:
    count_launch("twin", "backward")
    with torch.enable_grad():
        leaves = {n: t.detach().requires_grad_() for n, t in operands.items()}
        aggregate = saved.out_edge is not None
        found = module.attention_twin(functor, graph, leaves, scalars, dropout, aggregate=aggregate)
        pairs = [(r, g) for r, g in zip(found, cotangents, strict=True) if g is not None]
        wanted = [leaves[name] for name in sorted(needs)]
        grads = torch.autograd.grad(
            [r for r, _ in pairs], wanted, [g for _, g in pairs], materialize_grads=True
        )
    return dict(zip(sorted(needs), grads, strict=True))

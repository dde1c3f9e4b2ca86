"""GATv2 attention as one operator for ``torch.compile``.

Dynamo cannot trace the graph cache, so it is looked up inside the operator, at run time, in
forward and backward alike. Eager calls do not come here: the autograd function is faster.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.adapters.pyg.cache import graph_of
from gnn_backend.adapters.pyg.edges import Variant, is_edge_list
from gnn_backend.graph import Graph
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.ops.softmax_attention import kernel_ready
from gnn_backend.runtime.launch import Cotangents, Saved, engine_for
from gnn_backend.runtime.reordering import arranged

_GATV2 = FUNCTORS["gatv2"]


def takes(edge_index: Any) -> bool:
    """Whether the operator reads edges of this form: a plain [2, E] tensor only."""
    return type(edge_index) is Tensor and is_edge_list(edge_index)


def gatv2_attention(
    x_src: Tensor, x_dst: Tensor, att: Tensor, edge_index: Tensor, variant: Variant, slope: float
) -> Tensor:
    """:func:`gnn_backend.ops.attention.gatv2_attention` over PyG edges, for traced calls.

    Parameters
    ----------
    x_src, x_dst : Tensor [num_src, H, D], [num_dst, H, D]
    att : Tensor [H, D]
    edge_index : int32 or int64 [2, E]
        Plain tensor, self-loops not rewritten.
    variant : Variant
        Its node counts are not used: they are those of the features.
    slope : float
    """
    loops, reverse = variant.self_loops, variant.reverse
    return _forward(x_src, x_dst, att, edge_index, slope, loops, reverse)[0]


@torch.library.custom_op("gnn_backend::pyg_gatv2_attention", mutates_args=())
def _forward(
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    edge_index: Tensor,
    slope: float,
    loops: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    graph = _graph(x_src, x_dst, edge_index, loops, reverse)
    engine = engine_for(x_src.device, x_src.dtype)
    operands = _ready(x_src, x_dst, att)
    return engine.softmax_forward(_GATV2, graph, operands, {"negative_slope": slope})[:2]


@_forward.register_fake
def _(
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    edge_index: Tensor,
    slope: float,
    loops: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    lse_dtype = torch.promote_types(x_src.dtype, torch.float32)
    return x_dst.new_empty(x_dst.shape), x_dst.new_empty(x_dst.shape[:2], dtype=lse_dtype)


@torch.library.custom_op("gnn_backend::pyg_gatv2_attention_backward", mutates_args=())
def _backward(
    grad_out: Tensor,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    edge_index: Tensor,
    out: Tensor,
    lse: Tensor,
    slope: float,
    loops: bool,
    reverse: bool,
    needs: list[bool],
) -> list[Tensor]:
    graph = _graph(x_src, x_dst, edge_index, loops, reverse)
    engine = engine_for(x_src.device, x_src.dtype)
    names = [name for name, need in zip(_GATV2.operands, needs, strict=True) if need]
    grads = engine.softmax_backward(
        _GATV2,
        graph,
        _ready(x_src, x_dst, att),
        {"negative_slope": slope},
        Saved(out, lse),
        Cotangents(kernel_ready(grad_out)),
        frozenset(names),
    )
    return [grads[name] for name in names]


@_backward.register_fake
def _(
    grad_out: Tensor,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    edge_index: Tensor,
    out: Tensor,
    lse: Tensor,
    slope: float,
    loops: bool,
    reverse: bool,
    needs: list[bool],
) -> list[Tensor]:
    operands = zip((x_src, x_dst, att), needs, strict=True)
    return [operand.new_empty(operand.shape) for operand, need in operands if need]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x_src, x_dst, att, edge_index, *ctx.flags = inputs
    ctx.save_for_backward(x_src, x_dst, att, edge_index, *output)


def _differentiate(ctx: Any, grad_out: Tensor, grad_lse: None) -> tuple[Tensor | None, ...]:
    needs = list(ctx.needs_input_grad[:3])
    found = iter(_backward(grad_out, *ctx.saved_tensors, *ctx.flags, needs))
    grads = [next(found) if need else None for need in needs]
    return (*grads, *(None,) * (1 + len(ctx.flags)))


_forward.register_autograd(_differentiate, setup_context=_save)


def _graph(x_src: Tensor, x_dst: Tensor, edges: Tensor, loops: bool, reverse: bool) -> Graph:
    graph = graph_of(edges, Variant(x_src.shape[0], x_dst.shape[0], loops, reverse))
    return arranged(graph, x_src, x_src[:1].numel())


def _ready(*operands: Tensor) -> dict[str, Tensor]:
    return {n: kernel_ready(t) for n, t in zip(_GATV2.operands, operands, strict=True)}

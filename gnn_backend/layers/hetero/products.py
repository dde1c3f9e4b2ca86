"""Products of rows with the weight of their relation, and what spreads and gathers rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.ir.domains import Domain
from gnn_backend.layers.hetero.union import Rows, Union
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.ops.stacking import stack
from gnn_backend.ops.typed_linear import Bounds, typed_linear, typed_weight_grad

NODES = {Domain.SRC_PAIR: Domain.SRC, Domain.DST_PAIR: Domain.DST}


def gather(graph: Graph, x: Tensor) -> Tensor:
    """Sums over in-edges in a fixed order, forward and backward; copies where there is one."""
    out: Tensor = aggregate(graph, x, "sum")
    return out


def typed_rows(x: Tensor, weight: Tensor, bounds: Bounds, order: Tensor | None = None) -> Tensor:
    """Rows in segments, times the weight of their segment.

    Parameters
    ----------
    x : Tensor [N, I], or [N, B, I] by blocks
    weight : Tensor [R, I, O], or [R, B, I, O]
    bounds : Bounds
        Of the segments.
    order : int32 or int64 Tensor [N], optional
        Rows of each segment, one segment after the other; None: they lie so.

    Returns
    -------
    Tensor [N, O] or [N, B, O]
        Rows in the order of ``x``.
    """
    if len(weight) == 1 and weight.dim() == 3:
        return x @ weight[0]
    out: Tensor = _Product.apply(x, weight, bounds, order)
    return out


def segment_sums(x: Tensor, bounds: Bounds, order: Tensor | None = None) -> Tensor:
    """Sum of each segment's rows [N, O], as :func:`typed_rows` takes them: [R, O]."""
    out: Tensor = _Outer.apply(x.new_ones(len(x), 1), x, bounds, order)
    return out.squeeze(1)


def at_pairs(
    union: Union, pairs: Domain, x: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Node rows times the weight of each relation that they have edges in.

    Parameters
    ----------
    union : Union
    pairs : Domain
        ``SRC_PAIR`` or ``DST_PAIR``.
    x : Tensor [num_src or num_dst, I]
    weight : Tensor [R, I, O]
    bias : Tensor [R, O], optional

    Returns
    -------
    Tensor [pairs, O]
    """
    out: Tensor = _AtPairs.apply(x, weight, union, pairs)
    if bias is None:
        return out
    return out + gather(union.graph(pairs, Domain.EDGE_TYPE, pairs), bias)


def spread(union: Union, rows: Rows, values: Tensor) -> Tensor:
    """Values of (relation, destination) pairs, summed or put into the rows of the result."""
    return weighted(rows.graph(Domain.DST_PAIR, Domain.DST_PAIR), values,
                    rows.scale(Domain.DST_PAIR, values.dtype))  # fmt: skip


def weighted(graph: Graph, values: Tensor, weight: Tensor | None) -> Tensor:
    """Sum over in-edges, weighted if there are weights."""
    message = "copy" if weight is None else "mul"
    out: Tensor = aggregate(graph, values, "sum", edge=weight, message=message)
    return out


def own_rows(rows: Rows, x_dst: Tensor, weight: Tensor | None) -> Tensor:
    """Destinations' own rows, times each relation's weight; None: as they are.

    Parameters
    ----------
    rows : Rows
    x_dst : Tensor [num_dst, I]
    weight : Tensor [R, I, O] or None

    Returns
    -------
    Tensor [rows, O]
    """
    if weight is not None:
        table = gather(rows.from_table(), x_dst) if rows.dense else x_dst
        return typed_rows(table, mixed(rows, weight), rows.bounds)
    return gather(rows.from_table(), x_dst) if rows.dense else x_dst * rows.own_share(x_dst.dtype)


def with_bias(rows: Rows, out: Tensor, bias: Tensor | None) -> Tensor:
    """Results [rows, ...] plus the bias [R, ...] of each relation."""
    if bias is None:
        return out
    shares = mixed(rows, bias)
    return out + (shares if len(shares) == 1 else gather(rows.from_segments(), shares))


def mixed(rows: Rows, parameters: Tensor) -> Tensor:
    """Parameters [R, ...] of the relations as those of the result's segments."""
    mixing = rows.mixing(parameters.dtype)
    if mixing is None:
        return parameters
    return (mixing @ parameters.flatten(1)).view(-1, *parameters.shape[1:])


def stacked(tensors: Sequence[Tensor], *, transposed: bool = False) -> Tensor:
    """One buffer of the relations' parameters; their gradients are views of one."""
    out = stack(tensors)
    return out.transpose(1, 2) if transposed else out


def children_of(modules: Sequence[Any], name: str) -> list[Any]:
    """The submodule of that name of each; ``Module.__getattr__`` takes ten times as long."""
    return [module._modules[name] for module in modules]


def weights_of(linears: Sequence[Any]) -> Tensor:
    """Weights of linear modules, as matrices [R, in, out]."""
    return stacked([linear._parameters["weight"] for linear in linears], transposed=True)


def biases_of(linears: Sequence[Any]) -> Tensor | None:
    """Biases of linear modules [R, out], or None where they have none."""
    found = [linear._parameters["bias"] for linear in linears]
    return None if found[0] is None else stacked(found)


class _AtPairs(torch.autograd.Function):
    """Rows are read through the pairs' nodes, so that no copy of them is made or kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, union: Union, pairs: Domain) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.union, ctx.pairs = union, pairs
        nodes = union.relations.index(pairs, NODES[pairs])
        return typed_linear(x, weight, union.bounds(pairs), rows=nodes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        union, pairs, nodes = ctx.union, ctx.pairs, NODES[ctx.pairs]
        bounds = union.bounds(pairs)
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            at_pairs = _Product.apply(grad, weight.transpose(1, 2), bounds, None)
            to_x = gather(union.graph(pairs, pairs, nodes), at_pairs)
        if ctx.needs_input_grad[1]:
            if torch.is_grad_enabled():  # the gradient must have a graph itself
                rows = gather(union.graph(pairs, nodes, pairs), x)
                to_weight = _Outer.apply(rows, grad, bounds, None)
            else:
                index = union.relations.index(pairs, nodes)
                to_weight = typed_weight_grad(x, grad, bounds, x_rows=index)
        return to_x, to_weight, None, None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bounds: Bounds, order: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.places = bounds, order
        return typed_linear(x, weight, bounds, rows=order, out_rows=order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = _Product.apply(grad, weight.transpose(-2, -1), *ctx.places)
        if ctx.needs_input_grad[1]:
            to_weight = _Outer.apply(x, grad, *ctx.places)
        return to_x, to_weight, None, None


class _Outer(torch.autograd.Function):
    """Gradient of :class:`_Product` towards the weights, itself differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grad: Tensor, bounds: Bounds, order: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, grad)
        ctx.places = bounds, order
        return typed_weight_grad(x, grad, bounds, x_rows=order, grad_rows=order, heads=x.dim() == 3)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        x, grad = ctx.saved_tensors
        to_x = to_grad = None
        if ctx.needs_input_grad[0]:
            to_x = _Product.apply(grad, outer.transpose(-2, -1), *ctx.places)
        if ctx.needs_input_grad[1]:
            to_grad = _Product.apply(x, outer, *ctx.places)
        return to_x, to_grad, None, None

"""DGL's differentiable sparse operators on resident graphs, with backward passes of our own.

The functions at the end take the place of those of the same name in DGL's PyTorch backend, and of
the two in ``dgl.ops`` that lead there; on a CPU graph the stock function runs. Backward asks the
Graph for its reversal, which is kept with it. Gradients of operands that were broadcast are summed
before they get to edges or, where they are products, by the kernel, as dot products. Under
``create_graph`` backward records itself, so that it can be differentiated.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gnn_backend.adapters.dgl import pattern, weighted
from gnn_backend.adapters.dgl.autocast import without_autocast
from gnn_backend.adapters.dgl.operators import TARGETS, check_operands, relation_of, rows_at, run
from gnn_backend.adapters.dgl.pending import settled
from gnn_backend.adapters.dgl.residence import boundary
from gnn_backend.graph import Graph
from gnn_backend.ops.broadcast import broadcast

_Shape = tuple[int, ...]
_EXTREMES = ("max", "min")


# ---------------------------------------------------------------------- gradients of broadcasts


def _padded(table: Tensor, dims: int) -> Tensor:
    """The table with so many dimensions, new ones after the first."""
    missing = dims - table.dim()
    return table if missing <= 0 else table.reshape(len(table), *(1,) * missing, *table.shape[1:])


def _summed(grad: Tensor, tail: _Shape) -> Tensor:
    """Sum a gradient over the dimensions in which an operand [rows, *tail] was repeated."""
    shape = grad.shape[1:]
    if shape == tail:
        return grad
    padded = (1,) * (len(shape) - len(tail)) + tail
    dims = [i for i, (a, b) in enumerate(zip(shape, padded, strict=True), 1) if a != b]
    total = grad.sum(dims, keepdim=True) if dims else grad
    return total.reshape(len(grad), *tail)


@lru_cache(maxsize=1024)
def _dot(left: _Shape, right: _Shape, tail: _Shape) -> tuple[_Shape, int, int]:
    """Shape of a product, how many of its dimensions come before those to sum, and their size.

    Those to sum are the last ones, in which ``tail`` is 1 and both factors are whole; 1 if none.
    """
    shape = broadcast(left, right).shape
    rank = len(shape)
    left, right, tail = ((1,) * (rank - len(own)) + own for own in (left, right, tail))
    kept = max((i for i, size in enumerate(tail, 1) if size != 1), default=0)
    length = math.prod(shape[kept:]) if left[kept:] == right[kept:] else 1
    return shape, kept, length


def _edge_product(
    graph: Graph, left: Tensor, right: Tensor, targets: tuple[str, str], tail: _Shape
) -> Tensor:
    """Products on edges, summed to the trailing shape ``tail``: by the kernel, where it can."""
    shape, kept, length = _dot(tuple(left.shape[1:]), tuple(right.shape[1:]), tail)
    if length <= 1:
        return _summed(_sddmm(graph, "mul", left, right, *targets), tail)
    rank = len(shape)
    left, right = (
        table.reshape(len(table), *_padded(table, rank + 1).shape[1 : kept + 1], length)
        for table in (left, right)
    )
    product = _sddmm(graph, "dot", left, right, *targets)
    return _summed(product.reshape(len(product), *shape[:kept], *(1,) * (rank - kept)), tail)


# ---------------------------------------------------------------------- messages to nodes


class _Reduce(torch.autograd.Function):
    """Messages (``add``, ``mul``, ``copy_lhs``, ``copy_rhs``) reduced at destinations."""

    @staticmethod
    def forward(
        ctx: Any, graph: Graph, op: str, reduce: str, u: Tensor | None, e: Tensor | None,
        recorded: bool,
    ) -> Tensor:  # fmt: skip
        needs_u, needs_e = (recorded and need for need in ctx.needs_input_grad[3:5])
        wants = (needs_u or needs_e) and reduce in _EXTREMES
        out, arg_u, arg_e = run("gspmm", graph, op, reduce, u, e, arguments=wants)
        ctx.graph, ctx.op, ctx.reduce = graph, op, reduce
        ctx.tails = [None if table is None else tuple(table.shape[1:]) for table in (u, e)]
        factors = (u if needs_e else None, e if needs_u else None) if op == "mul" else (None, None)
        ctx.save_for_backward(*factors, arg_u, arg_e)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        u, e, arg_u, arg_e = ctx.saved_tensors
        graph, (tail_u, tail_e) = ctx.graph, ctx.tails
        needs_u, needs_e = ctx.needs_input_grad[3:5]
        grad_u = grad_e = None
        if ctx.reduce in _EXTREMES:
            if needs_u:
                handed = grad if e is None else grad * _won(e, arg_e)
                grad_u = _summed(_handed(graph.num_src, arg_u, handed), tail_u)
            if needs_e:
                handed = grad if u is None else grad * _won(u, arg_u)
                grad_e = _summed(_handed(graph.num_edges, arg_e, handed), tail_e)
            return None, None, None, grad_u, grad_e, None
        if ctx.reduce == "mean":
            grad = _divided(graph, grad)
        if needs_u and e is None:
            grad_u = _spmm(graph.reversed(), "copy_lhs", _summed(grad, tail_u), None)
        elif needs_u:
            grad_u = _summed(_spmm(graph.reversed(), "mul", grad, e), tail_u)
        if needs_e and u is None:
            grad_e = _sddmm(graph, "copy_rhs", None, _summed(grad, tail_e), "u", "v")
        elif needs_e:
            grad_e = _edge_product(graph, u, grad, ("u", "v"), tail_e)
        return None, None, None, grad_u, grad_e, None


def _untracked() -> bool:
    """Whether nothing is to be differentiated, so that an operator can be called as it is."""
    return not torch.is_grad_enabled() and getattr(forward_ad, "_current_level", 0) < 0


def _spmm(graph: Graph, op: str, u: Tensor | None, e: Tensor | None, reduce: str = "sum") -> Tensor:
    out: Tensor
    if _untracked():
        out = run("gspmm", graph, op, reduce, u, e, arguments=False)[0]
        return out
    out = _Reduce.apply(graph, op, reduce, u, e, torch.is_grad_enabled())
    return out


def _divided(graph: Graph, grad: Tensor) -> Tensor:
    """The gradient of a mean as that of a sum."""
    kind = torch.promote_types(grad.dtype, torch.float32)  # 16 bits do not count to a hub's edges
    degrees = graph.plans.get(("degrees", kind))
    if degrees is None:
        degrees = graph.by_dst.indptr.diff().clamp(min=1).to(kind)
        graph.plans["degrees", kind] = degrees
    shape = (-1, *(1,) * (grad.dim() - 1))
    return (grad / degrees.view(shape)).to(grad.dtype)


def _won(table: Tensor, arg: Tensor) -> Tensor:
    """The value of an operand in the message that won."""
    return _padded(table, arg.dim()).expand(-1, *arg.shape[1:]).gather(0, arg.long())


def _handed(rows: int, arg: Tensor, grad: Tensor) -> Tensor:
    """Gradients handed to the rows that won, of which a table without rows has none."""
    out = grad.new_zeros(rows, *grad.shape[1:])
    return out.scatter_add(0, arg.long(), grad) if rows else out


# ---------------------------------------------------------------------- results on edges


class _OnEdges(torch.autograd.Function):
    """A result (``add``, ``mul``, ``dot``, ``copy_lhs``, ``copy_rhs``) on each edge."""

    @staticmethod
    def forward(
        ctx: Any, graph: Graph, op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str,
        rhs_target: str,
    ) -> Tensor:  # fmt: skip
        out: Tensor = run("gsddmm", graph, op, lhs, rhs, lhs_target, rhs_target)
        ctx.graph, ctx.op, ctx.targets = graph, op, (lhs_target, rhs_target)
        ctx.tails = [None if table is None else tuple(table.shape[1:]) for table in (lhs, rhs)]
        needs_lhs, needs_rhs = ctx.needs_input_grad[2:4]
        product = op in ("mul", "dot")
        ctx.save_for_backward(
            lhs if product and needs_rhs else None, rhs if product and needs_lhs else None
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        lhs, rhs = ctx.saved_tensors
        grads = [
            _operand_grad(ctx.graph, grad, other, targets, tail) if needed else None
            for needed, other, targets, tail in zip(
                ctx.needs_input_grad[2:4], (rhs, lhs), (ctx.targets, ctx.targets[::-1]), ctx.tails,
                strict=True,
            )
        ]  # fmt: skip
        return None, None, *grads, None, None


def _operand_grad(
    graph: Graph, grad: Tensor, other: Tensor | None, targets: tuple[str, str], tail: _Shape
) -> Tensor:
    """Gradient of one operand; ``other`` is the factor that it was multiplied with, if it was."""
    own, its = targets
    if own == "e":
        if other is None:
            return _summed(grad, tail)
        return _edge_product(graph, grad, other, ("e", its), tail)
    towards = graph if own == "v" else graph.reversed()
    if other is None:
        out = _spmm(towards, "copy_rhs", None, grad)
    elif its == own:
        total = _spmm(towards, "copy_rhs", None, grad)
        dims = max(total.dim(), other.dim())
        out = _padded(total, dims) * _padded(other, dims)
    elif its == "e":
        dims = max(grad.dim(), other.dim())
        out = _spmm(towards, "copy_rhs", None, _padded(grad, dims) * _padded(other, dims))
    else:
        out = _spmm(towards, "mul", other, grad)
    return _summed(out, tail)


def _sddmm(
    graph: Graph, op: str, lhs: Tensor | None, rhs: Tensor | None, lhs_target: str, rhs_target: str
) -> Tensor:
    out: Tensor
    if _untracked():
        out = run("gsddmm", graph, op, lhs, rhs, lhs_target, rhs_target)
        return out
    out = _OnEdges.apply(graph, op, lhs, rhs, lhs_target, rhs_target)
    return out


# ---------------------------------------------------------------------- in the place of DGL's


def _without_inverse(op: str, rhs: Any) -> tuple[str, Any]:
    """The operator and its right-hand side without difference and quotient, as DGL has them."""
    if op == "sub":
        return "add", -rhs
    return ("mul", 1.0 / rhs) if op == "div" else (op, rhs)


def _reduced(index: Any, relation: Any, op: str, reduce: str, u: Any, e: Any) -> Tensor:
    u = None if op == "copy_rhs" else u
    e = None if op == "copy_lhs" else e
    op, e = _without_inverse(op, e)
    with without_autocast(index.device) as cast:
        u, e = cast(u), cast(e)
        check_operands(
            index, "csc", op, ("source", u, relation.num_src), ("edge", e, relation.num_edges)
        )
        return _spmm(relation.graph, op, u, e, reduce)


def _on_edges(
    index: Any, relation: Any, op: str, lhs: Any, rhs: Any, lhs_target: Any, rhs_target: Any
) -> Tensor:
    lhs = None if op == "copy_rhs" else lhs
    rhs = None if op == "copy_lhs" else rhs
    op, rhs = _without_inverse(op, rhs)
    left, right = (TARGETS.get(t, t) for t in (lhs_target, rhs_target))
    with without_autocast(index.device) as cast:
        lhs, rhs = cast(lhs), cast(rhs)
        check_operands(
            index, "csr", op,
            ("left-hand", lhs, rows_at(relation, left)),
            ("right-hand", rhs, rows_at(relation, right)),
        )  # fmt: skip
        return _sddmm(relation.graph, op, lhs, rhs, left, right)


def gspmm(stock: Any, gidx: Any, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any) -> Tensor:
    """``gspmm`` of DGL's PyTorch backend."""
    lhs_data, rhs_data = settled(lhs_data), settled(rhs_data)
    relation = relation_of(gidx)
    if relation is None:
        return stock(gidx, op, reduce_op, lhs_data, rhs_data)  # type: ignore[no-any-return]
    return _reduced(gidx, relation, op, reduce_op, lhs_data, rhs_data)


def gsddmm(
    stock: Any, gidx: Any, op: str, lhs_data: Any, rhs_data: Any, lhs_target: Any = "u",
    rhs_target: Any = "v",
) -> Tensor:  # fmt: skip
    """``gsddmm`` of DGL's PyTorch backend."""
    lhs_data, rhs_data = settled(lhs_data), settled(rhs_data)
    relation = relation_of(gidx)
    if relation is None:
        return stock(gidx, op, lhs_data, rhs_data, lhs_target, rhs_target)  # type: ignore[no-any-return]
    return _on_edges(gidx, relation, op, lhs_data, rhs_data, lhs_target, rhs_target)


def gspmm_hetero(
    stock: Any, g: Any, op: str, reduce_op: str, lhs_len: int, *lhs_and_rhs_tuple: Any
) -> Any:
    """``gspmm_hetero`` of DGL's PyTorch backend; DGL's own gradients for max and min."""
    if type(g) is not boundary._kinds.get("index") or reduce_op != "sum":
        return stock(g, op, reduce_op, lhs_len, *lhs_and_rhs_tuple)
    sources, edges = lhs_and_rhs_tuple[:lhs_len], lhs_and_rhs_tuple[lhs_len:]
    found: list[Any] = [None] * g.num_types
    for etype, (src, dst) in enumerate(g.ends):
        u = None if op == "copy_rhs" else sources[src]
        e = None if op == "copy_lhs" else edges[etype]
        out = _reduced(g, g.relations[etype], op, reduce_op, u, e)
        found[dst] = out if found[dst] is None else found[dst] + out
    return tuple(torch.tensor([], device=g.device) if out is None else out for out in found)


def gsddmm_hetero(
    stock: Any, g: Any, op: str, lhs_len: int, lhs_target: Any = "u", rhs_target: Any = "v",
    *lhs_and_rhs_tuple: Any,
) -> Any:  # fmt: skip
    """``gsddmm_hetero`` of DGL's PyTorch backend."""
    if type(g) is not boundary._kinds.get("index"):
        return stock(g, op, lhs_len, lhs_target, rhs_target, *lhs_and_rhs_tuple)
    left, right = lhs_and_rhs_tuple[:lhs_len], lhs_and_rhs_tuple[lhs_len:]
    lhs_target, rhs_target = (TARGETS.get(t, t) for t in (lhs_target, rhs_target))
    out = []
    for etype, (src, dst) in enumerate(g.ends):
        of = {"u": src, "v": dst, "e": etype}
        lhs = None if op == "copy_rhs" else left[of[lhs_target]]
        rhs = None if op == "copy_lhs" else right[of[rhs_target]]
        if lhs is None and rhs is None:
            out.append(torch.tensor([], device=g.device))
            continue
        out.append(_on_edges(g, g.relations[etype], op, lhs, rhs, lhs_target, rhs_target))
    return tuple(out)


def _one_relation(g: Any) -> tuple[Any, Any] | None:
    """(index, relation) of a resident graph with one edge type, or None."""
    index = g._graph
    if type(index) is not boundary._kinds.get("index") or len(index.relations) != 1:
        return None
    return index, index.relations[0]


def reduce_messages(
    stock: Any, g: Any, op: str, reduce_op: str, lhs_data: Any, rhs_data: Any
) -> Any:
    """``dgl.ops.gspmm``, in which stock divides a sum by degrees that it asks for to get a mean."""
    fused = pattern.attention(g, op, reduce_op, lhs_data, rhs_data)
    if fused is not None:
        return fused
    lhs_data, rhs_data = settled(lhs_data), settled(rhs_data)
    found = _one_relation(g)
    if found is None:
        weighted_sum = weighted.reduced(stock, g, op, reduce_op, lhs_data, rhs_data)
        if weighted_sum is not None:
            return weighted_sum
        return stock(g, op, reduce_op, lhs_data, rhs_data)
    return _reduced(*found, op, reduce_op, lhs_data, rhs_data)


def apply_on_edges(
    stock: Any, g: Any, op: str, lhs_data: Any, rhs_data: Any, lhs_target: Any = "u",
    rhs_target: Any = "v",
) -> Any:  # fmt: skip
    """``dgl.ops.gsddmm``."""
    found, structure = _one_relation(g), pattern.Structure(g)

    def compute(lhs: Any, rhs: Any, left: Any = "u", right: Any = "v") -> Any:
        if found is None:
            return stock(structure, op, lhs, rhs, left, right)
        return _on_edges(*found, op, lhs, rhs, left, right)

    put_off = pattern.put_off_scores(g, op, lhs_data, rhs_data, lhs_target, rhs_target, compute)
    if put_off is not None:
        return put_off
    return compute(settled(lhs_data), settled(rhs_data), lhs_target, rhs_target)

"""A traversal in plain torch: the oracle of generated kernels, and the path without any.

Every register is stored for every element, so this is for checks, for devices and dtypes that have
no kernels, and for small graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.traversal import Reduction, Step, Table, Traversal

_UNARY = {
    "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "relu": torch.relu,
}  # fmt: skip
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "equal": lambda a, b: (a == b).to(a.dtype),
    "greater": lambda a, b: (a > b).to(a.dtype),
}  # fmt: skip


def run(
    traversal: Traversal, relations: Relations, inputs: Sequence[Tensor],
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:  # fmt: skip
    """Run a traversal.

    Parameters
    ----------
    traversal : Traversal
    relations : Relations
    inputs : sequence of Tensor
        In the order of ``traversal.inputs``, [rows, ...] with as many values a row as the table.
    dtype : torch.dtype
        Of the results, where there are no inputs.

    Returns
    -------
    list of Tensor
        In the order of ``traversal.outputs``, [rows, heads, dim], in the dtype of the inputs.
    """
    dtype = inputs[0].dtype if inputs else dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    count = relations.num(traversal.elements)
    registers: list[Tensor] = []
    for step in traversal.code:
        if step.op == "load":
            table = traversal.inputs[step.table]
            rows = inputs[step.table].reshape(-1, table.heads, table.dim).to(wide)
            registers.append(_read(rows, table, traversal.elements, count, relations))
        else:
            registers.append(_evaluate(step, registers, count, wide, relations.device))
    outputs: list[Tensor | None] = [None] * len(traversal.outputs)
    for store in traversal.stores:
        found = registers[store.value]
        outputs[store.table] = _shaped(found, traversal.outputs[store.table], count)
    if traversal.reductions:
        assert traversal.rows is not None
        index = relations.index(traversal.elements, traversal.rows)
        num_rows = relations.num(traversal.rows)
        if index is None:
            index = torch.arange(count, device=relations.device)
        for reduction in traversal.reductions:
            table = traversal.outputs[reduction.table]
            found = _reduce(reduction, registers, index.long(), num_rows, count)
            outputs[reduction.table] = _shaped(found, table, num_rows)
    return [o.to(dtype) for o in outputs if o is not None]


def _read(rows: Tensor, table: Table, elements: Domain, count: int, relations: Relations) -> Tensor:
    """The row of each element [elements, heads, dim]."""
    if table.domain is Domain.PARAM:
        return rows.expand(count, *rows.shape[1:])
    index = relations.index(elements, table.domain)
    return rows if index is None else rows.index_select(0, index)


def _evaluate(
    step: Step, registers: Sequence[Tensor], count: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    args = [registers[a] for a in step.args]
    if step.op == "const":
        return torch.full((count, 1, 1), step.value, dtype=dtype, device=device)
    if step.op == "dot":
        return (args[0] * args[1]).sum(-1, keepdim=True)
    if step.op == "leaky_relu":
        return torch.nn.functional.leaky_relu(args[0], step.value)
    if step.op == "slope":
        return torch.where(args[0] > 0, torch.ones((), dtype=dtype, device=device), step.value)
    if step.op in _UNARY:
        return _UNARY[step.op](args[0])
    found: Tensor = _BINARY[step.op](*args)
    return found


def _reduce(
    reduction: Reduction, registers: Sequence[Tensor], index: Tensor, rows: int, count: int
) -> Tensor:
    value = registers[reduction.value]
    if reduction.how == "sum":
        return _sum(value, index, rows)
    if reduction.how in ("max", "min"):
        return _extreme(value, index, rows, reduction.how)
    logit = value if reduction.how == "lse" else registers[reduction.logit]
    top = _extreme(logit, index, rows, "max")
    finite = torch.where(top.isfinite(), top, 0.0)
    weight = torch.exp(logit - finite[index])
    total = _sum(weight, index, rows)
    if reduction.how == "lse":
        return finite + torch.log(total)
    degree = torch.bincount(index, minlength=rows)[:, None, None]
    return torch.where(degree > 0, _sum(weight * value, index, rows) / total, 0.0)


def _sum(value: Tensor, index: Tensor, rows: int) -> Tensor:
    return value.new_zeros(rows, *value.shape[1:]).index_add_(0, index, value)


def _extreme(value: Tensor, index: Tensor, rows: int, how: str) -> Tensor:
    least = -torch.inf if how == "max" else torch.inf
    places = index[:, None, None].expand_as(value)
    start = value.new_full((rows, *value.shape[1:]), least)
    return start.scatter_reduce_(0, places, value, f"a{how}")


def _shaped(found: Tensor, table: Table, rows: int) -> Tensor:
    return found.expand(rows, table.heads, table.dim).contiguous()

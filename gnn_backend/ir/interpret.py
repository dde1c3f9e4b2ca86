"""Programs in plain, differentiable torch, value by value: the oracle of everything compiled.

A value is a tensor with a row for each row of its domain, [rows, *shape]; what has one row in all
(``Domain.PARAM``) is stored as [1, *shape]. Every intermediate is stored, those of edges as well,
so this is for checks and for small values. 16-bit rows are summed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gnn_backend.errors import invalid
from gnn_backend.graph.incidence import Segments
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.values import Program, Value


def evaluate(program: Program, relations: Relations, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Evaluate a program.

    Parameters
    ----------
    program : Program
    relations : Relations
    inputs : mapping of str to Tensor
        A tensor for each input, [rows, *shape], of one floating dtype; parameters [*shape].

    Returns
    -------
    list of Tensor
        The outputs, stored likewise; gradients flow through them.

    Raises
    ------
    InvalidArgument
        An input is missing or has another shape.
    """
    given = {v.attrs["name"]: _stored(v, relations, inputs) for v in program.inputs}
    dtype = next((t.dtype for t in given.values()), torch.get_default_dtype())
    found: dict[Value, Tensor] = {}
    for value in program.values():
        if value.op == "input":
            found[value] = given[value.attrs["name"]]
        else:
            found[value] = apply(value, [found[a] for a in value.args], relations, dtype)
    return [found[v][0] if v.domain is Domain.PARAM else found[v] for v in program.outputs]


def _stored(value: Value, relations: Relations, inputs: Mapping[str, Tensor]) -> Tensor:
    name = str(value.attrs["name"])
    if name not in inputs:
        raise invalid(name, "missing", f"inputs {sorted(inputs)}", f"{value.domain.value} rows")
    rows = () if value.domain is Domain.PARAM else (relations.num(value.domain),)
    tensor = inputs[name]
    if tuple(tensor.shape) != (*rows, *value.shape):
        raise invalid(name, "wrong shape", list(tensor.shape), [*rows, *value.shape])
    return tensor if rows else tensor[None]


def apply(
    value: Value, args: Sequence[Tensor], relations: Relations, dtype: torch.dtype | None = None
) -> Tensor:
    """Run the operator of one value.

    Parameters
    ----------
    value : Value
        Any but an input.
    args : sequence of Tensor
        Its arguments, [rows, *shape].
    relations : Relations
    dtype : torch.dtype, optional
        Of values that have no argument, constants and degrees; float32 by default.

    Returns
    -------
    Tensor
        [rows, *shape], possibly an expanded view.
    """
    if not args:
        return _source(value, relations, dtype or torch.float32)
    return OPERATORS[value.op](value, list(args), relations)


def _source(value: Value, relations: Relations, dtype: torch.dtype) -> Tensor:
    if value.op == "degree":
        return relations.degree(value.domain).to(dtype)
    number = float(value.attrs["value"])  # type: ignore[arg-type]
    return torch.full((1, *value.shape), number, dtype=dtype, device=relations.device)


# --------------------------------------------------------------------------- a row alone

_ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "leaky_relu": lambda x, slope: functional.leaky_relu(x, slope),
    "slope": lambda x, slope: torch.where(x > 0, torch.ones_like(x), slope),
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "equal": lambda a, b: (a == b).to(a.dtype),
    "greater": lambda a, b: (a > b).to(a.dtype),
}  # fmt: skip


def _elementwise(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    rank = 1 + len(value.shape)
    aligned = (a.reshape(*a.shape, *(1,) * (rank - a.dim())) for a in args)
    return _ELEMENTWISE[value.op](*aligned, **value.attrs)


def _dot(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    return (args[0] * args[1]).sum(-1)


def _outer(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    return args[0][..., :, None] * args[1][..., None, :]


def _matmul(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    return args[0] @ args[1]


def _row_sum(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    return args[0].sum(_dim(value))


def _transpose(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    return args[0].mT


def _concat(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    return torch.cat(args, -1)


def _slice(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    start, stop = int(value.attrs["start"]), int(value.attrs["stop"])  # type: ignore[call-overload]
    return args[0].narrow(_dim(value), start, stop - start)


def _reshape(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    return args[0].reshape(args[0].shape[0], *value.shape)


def _dim(value: Value) -> int:
    return 1 + int(value.attrs["dim"])  # type: ignore[call-overload]


# --------------------------------------------------------------------------- between rows


def _gather(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    coarse = value.args[0].domain
    if coarse is Domain.PARAM:
        return args[0].expand(relations.num(value.domain), *value.shape)
    index = relations.index(value.domain, coarse)
    return args[0] if index is None else args[0].index_select(0, index)


def _reduce(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    x, how = args[0], str(value.attrs["how"])
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    index = relations.index(value.args[0].domain, value.domain)
    assert index is not None  # of a coarser domain
    return _REDUCE[how](wide, index.long(), relations.num(value.domain)).to(x.dtype)


def _sum(x: Tensor, index: Tensor, rows: int) -> Tensor:
    return x.new_zeros(rows, *x.shape[1:]).index_add(0, index, x)


def _mean(x: Tensor, index: Tensor, rows: int) -> Tensor:
    count = torch.bincount(index, minlength=rows).clamp(min=1).to(x.dtype)
    return _sum(x, index, rows) / count.reshape(-1, *(1,) * (x.dim() - 1))


def _max(x: Tensor, index: Tensor, rows: int) -> Tensor:
    empty = x.new_full((rows, *x.shape[1:]), -torch.inf)
    places = index.reshape(-1, *(1,) * (x.dim() - 1)).expand_as(x)
    return empty.scatter_reduce(0, places, x, "amax")  # shares the gradient among ties


def _min(x: Tensor, index: Tensor, rows: int) -> Tensor:
    return -_max(-x, index, rows)


def _lse(x: Tensor, index: Tensor, rows: int) -> Tensor:
    most = _max(x.detach(), index, rows)
    most = torch.where(most.isfinite(), most, 0.0)
    return most + torch.log(_sum(torch.exp(x - most[index]), index, rows))


_REDUCE = {"sum": _sum, "mean": _mean, "max": _max, "min": _min, "lse": _lse}


# --------------------------------------------------------------------------- weights of types


def _sorted(x: Tensor, segments: Segments) -> Tensor:
    return x if segments.order is None else x[segments.order.long()]


def _linear(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    x, weight = args
    if value.attrs["transposed"]:
        weight = weight.mT
    segments = relations.by_type(*(a.domain for a in value.args))
    equation = "nhi,hio->nho" if weight.dim() == 4 else "n...i,io->n...o"
    pieces = _sorted(x, segments).split(segments.lengths)
    out = torch.cat([torch.einsum(equation, p, w) for p, w in zip(pieces, weight, strict=True)])
    return out if segments.order is None else out[torch.argsort(segments.order)]


def _weight_grad(value: Value, args: list[Tensor], relations: Relations) -> Tensor:
    segments = relations.by_type(value.args[0].domain, value.domain)
    x, grad = (_sorted(a, segments) for a in args)
    if value.attrs["heads"]:
        equation, lengths = "nhi,nho->hio", list(segments.lengths)
    else:  # the dimensions before the last are rows like others
        equation, inner = "ni,no->io", x.shape[1:-1].numel()
        lengths = [n * inner for n in segments.lengths]
        x, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    pieces = zip(x.split(lengths), grad.split(lengths), strict=True)
    return torch.stack([torch.einsum(equation, a, b) for a, b in pieces])


#: The operators that have arguments.
OPERATORS: dict[str, Callable[[Value, list[Tensor], Relations], Tensor]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    "dot": _dot, "outer": _outer, "matmul": _matmul, "row_sum": _row_sum,
    "transpose": _transpose, "concat": _concat, "slice": _slice, "reshape": _reshape,
    "gather": _gather, "reduce": _reduce, "linear": _linear, "weight_grad": _weight_grad,
}  # fmt: skip

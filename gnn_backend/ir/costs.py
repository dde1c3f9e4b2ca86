"""What a lowered program costs on a graph of given sizes: rows of products, operations, bytes.

Counted from the steps, so that values which several kernels compute again count as often, and
tables which one kernel reads for several results count once. Caches are not modelled: a row that is
read through an index is read as often as the index says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnn_backend.ir.domains import Domain
from gnn_backend.ir.fusion import is_number
from gnn_backend.ir.lower import Plan
from gnn_backend.ir.steps import LinearStep, Step, TorchStep, TraverseStep, WeightGradStep
from gnn_backend.ir.traversal import Reduction, Table, Traversal
from gnn_backend.ir.values import Value

Sizes = Mapping[Domain, int]
_INDEX_BYTES = 4  # indices are int32
#: Operators of torch that compute nothing; of these a reshape moves nothing either.
_MOVES = frozenset(("gather", "slice", "concat", "transpose", "reshape", "const", "degree"))
#: Operations a number that a reduction takes in: an exponential counts as one.
_TAKES = {"sum": 1, "max": 1, "min": 1, "lse": 2, "softmax": 2}


@dataclass(frozen=True)
class Cost:
    """What running steps takes.

    Attributes
    ----------
    rows : int
        Of products: those that linear operators and gradients of their weights go over.
    flops : int
        Multiplications, additions and functions of one number.
    bytes : int
        Read and written by the steps, indices included.
    """

    rows: int = 0
    flops: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rows + other.rows, self.flops + other.flops, self.bytes + other.bytes)


def cost(plan: Plan, sizes: Sizes, itemsize: int = 4) -> Cost:
    """Cost of a plan.

    Parameters
    ----------
    plan : Plan
    sizes : mapping of Domain to int
        Rows of each domain.
    itemsize : int
        Bytes of a number.
    """
    total = Cost()
    for step in plan.steps:
        total += step_cost(step, sizes, itemsize)
    return total


def step_cost(step: Step, sizes: Sizes, itemsize: int = 4) -> Cost:
    """Cost of one step; arguments are those of :func:`cost`."""
    if isinstance(step, LinearStep):
        return _linear(step, sizes, itemsize)
    if isinstance(step, WeightGradStep):
        return _weight_grad(step, sizes, itemsize)
    if isinstance(step, TraverseStep):
        return _traverse(step.traversal, sizes, itemsize)
    assert isinstance(step, TorchStep)
    return _torch(step.outputs[0], sizes, itemsize)


def _linear(step: LinearStep, sizes: Sizes, itemsize: int) -> Cost:
    value, weight = step.outputs[0], step.weight
    rows = sizes[value.domain]
    numbers = rows * (step.x.size + value.size) + sizes[weight.domain] * weight.size
    indices = rows * (step.x.domain is not value.domain)
    flops = 2 * rows * step.x.size * value.shape[-1]
    return Cost(rows, flops, numbers * itemsize + indices * _INDEX_BYTES)


def _weight_grad(step: WeightGradStep, sizes: Sizes, itemsize: int) -> Cost:
    value, rows = step.outputs[0], sizes[step.elements]
    ends = (step.x, step.grad)
    numbers = rows * sum(v.size for v in ends) + sizes[value.domain] * value.size
    indices = rows * sum(v.domain is not step.elements for v in ends)
    flops = 2 * rows * step.x.size * value.shape[-1]
    return Cost(rows, flops, numbers * itemsize + indices * _INDEX_BYTES)


def _traverse(t: Traversal, sizes: Sizes, itemsize: int) -> Cost:
    elements = sizes[t.elements]
    rows = elements if t.rows is None else sizes[t.rows]

    def count(table: Table) -> int:
        if table.domain is Domain.PARAM:
            return table.heads * table.dim
        return (rows if t.by_row(table) else elements) * table.heads * table.dim

    numbers = sum(map(count, t.inputs)) + rows * sum(o.heads * o.dim for o in t.outputs)
    own = t.elements if t.rows is None else None  # a map's row is its number
    indices = elements * sum(d is not own for d in t.indices()) + rows * len(t.row_indices())
    flops = sum((rows if s.per_row else elements) * _register(t, k) for k, s in enumerate(t.code))
    flops += sum(elements * _reduction(t, r) for r in t.reductions)
    return Cost(0, flops, numbers * itemsize + indices * _INDEX_BYTES)


def _register(t: Traversal, number: int) -> int:
    step = t.code[number]
    if step.op in ("load", "const"):
        return 0
    if step.op == "dot":
        args = [t.code[a] for a in step.args]
        return 2 * max(a.heads for a in args) * max(a.dim for a in args)
    return step.heads * step.dim


def _reduction(t: Traversal, reduction: Reduction) -> int:
    table = t.outputs[reduction.table]
    return _TAKES[reduction.how] * table.heads * table.dim


def _torch(value: Value, sizes: Sizes, itemsize: int) -> Cost:
    if value.op == "reshape":
        return Cost()
    read = [a for a in value.args if not is_number(a)]
    numbers = sum(sizes[v.domain] * v.size for v in (*read, value))
    return Cost(0, _torch_flops(value, sizes), numbers * itemsize)


def _torch_flops(value: Value, sizes: Sizes) -> int:
    if value.op in _MOVES:
        return 0
    rows = sizes[value.domain]
    if value.op == "dot":
        return 2 * rows * max(a.size for a in value.args)
    if value.op == "matmul":
        return 2 * rows * value.size * value.args[0].shape[-1]
    if value.op in ("reduce", "row_sum"):
        return sizes[value.args[0].domain] * value.args[0].size
    return rows * value.size

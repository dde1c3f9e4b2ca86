"""What a lowered program does, one after the other; how each step is run.

A step reads stored values and leaves stored values: tensors [rows, *shape], parameters [1, *shape].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.fusion import is_number, number_of
from gnn_backend.ir.interpret import apply
from gnn_backend.ir.traversal import Traversal
from gnn_backend.ir.values import Value
from gnn_backend.ops.traversal import traverse
from gnn_backend.ops.typed_linear import typed_linear, typed_weight_grad

Stored = Mapping[Value, Tensor]


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes
    ----------
    outputs : tuple of Value
        What it leaves.
    """

    outputs: tuple[Value, ...]

    def reads(self) -> tuple[Value, ...]:
        """Stored values that it reads."""
        raise NotImplementedError

    def run(self, stored: Stored, relations: Relations, dtype: torch.dtype) -> list[Tensor]:
        """The outputs' tensors."""
        raise NotImplementedError

    def describe(self) -> str:
        """One line, without sizes."""
        raise NotImplementedError


@dataclass(frozen=True)
class TorchStep(Step):
    """One operator in plain torch."""

    def reads(self) -> tuple[Value, ...]:
        return tuple(a for a in self.outputs[0].args if not is_number(a))

    def run(self, stored: Stored, relations: Relations, dtype: torch.dtype) -> list[Tensor]:
        value = self.outputs[0]
        args = [
            torch.full((1,), number_of(a), dtype=dtype, device=relations.device)
            if is_number(a) else stored[a]
            for a in value.args
        ]  # fmt: skip
        found = apply(value, args, relations, dtype)
        rows = relations.num(value.domain)
        return [found if found.shape[0] == rows else found.expand(rows, *value.shape)]

    def describe(self) -> str:
        return f"torch {self.outputs[0].op}"


@dataclass(frozen=True)
class LinearStep(Step):
    """Rows, read through an index where they are another domain's, times the weight of their type.

    Attributes
    ----------
    x, weight : Value
    """

    x: Value
    weight: Value

    def reads(self) -> tuple[Value, ...]:
        return (self.x, self.weight)

    def run(self, stored: Stored, relations: Relations, dtype: torch.dtype) -> list[Tensor]:
        value = self.outputs[0]
        x, weight = stored[self.x], stored[self.weight]
        transposed = bool(value.attrs["transposed"])
        if self.weight.domain is Domain.PARAM and weight.dim() == 3:
            index = relations.index(value.domain, self.x.domain)
            rows = x if index is None else x.index_select(0, index)
            return [rows @ (weight[0].mT if transposed else weight[0])]
        key = ("typed linear", value.domain, self.weight.domain, self.x.domain)
        kept = relations.plans.get(key)
        if kept is None:
            places = relations.incidence(self.weight.domain, value.domain)
            kept = relations.plans[key] = (
                relations.by_type(value.domain, self.weight.domain),
                places.index(self.x.domain), places.order, relations.num(value.domain),
            )  # fmt: skip
        segments, index, order, count = kept
        return [typed_linear(
            x, weight, segments, rows=index, out_rows=order, num_out=count, transposed=transposed
        )]  # fmt: skip

    def describe(self) -> str:
        kind = "linear" if self.weight.domain is Domain.PARAM else "typed linear"
        return f"{kind}, rows of {self.x.domain.value}"


@dataclass(frozen=True)
class WeightGradStep(Step):
    """Gradient of a weight.

    Attributes
    ----------
    x, grad : Value
    elements : Domain
        Whose rows are summed; ``x`` and ``grad`` are read by its indices.
    """

    x: Value
    grad: Value
    elements: Domain

    def reads(self) -> tuple[Value, ...]:
        return (self.x, self.grad)

    def run(self, stored: Stored, relations: Relations, dtype: torch.dtype) -> list[Tensor]:
        value = self.outputs[0]
        key = ("weight gradient", value.domain, self.elements, self.x.domain, self.grad.domain)
        kept = relations.plans.get(key)
        if kept is None:
            places = relations.incidence(value.domain, self.elements)
            kept = relations.plans[key] = (
                relations.by_type(self.elements, value.domain),
                places.index(self.x.domain), places.index(self.grad.domain),
            )  # fmt: skip
        segments, x_rows, grad_rows = kept
        return [typed_weight_grad(
            stored[self.x], stored[self.grad], segments, x_rows=x_rows, grad_rows=grad_rows,
            heads=bool(value.attrs["heads"]),
        )]  # fmt: skip

    def describe(self) -> str:
        return f"weight gradient over {self.elements.value}"


@dataclass(frozen=True)
class TraverseStep(Step):
    """A fused kernel.

    Attributes
    ----------
    traversal : Traversal
    inputs : tuple of Value
    """

    traversal: Traversal
    inputs: tuple[Value, ...]

    def reads(self) -> tuple[Value, ...]:
        return self.inputs

    def run(self, stored: Stored, relations: Relations, dtype: torch.dtype) -> list[Tensor]:
        inputs = [stored[v] for v in self.inputs]
        found = traverse(self.traversal, relations, inputs, dtype)
        return [t.view(t.shape[0], *v.shape) for t, v in zip(found, self.outputs, strict=True)]

    def describe(self) -> str:
        t = self.traversal
        if t.rows is None:
            return f"map over {t.elements.value}"
        how = ", ".join(r.how for r in t.reductions)
        return f"traversal of {t.elements.value} by {t.rows.value}: {how}"

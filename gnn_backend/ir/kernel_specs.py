"""What each step of a plan launches on a target: its specification, and the text that is compiled.

Nothing is compiled or run, so the CUDA target needs no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from gnn_backend.errors import Unsupported
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.steps import LinearStep, Step, TorchStep, TraverseStep, WeightGradStep
from gnn_backend.runtime.block_sparse import allows_tf32
from gnn_backend.runtime.gemm_choice import Product, Way, choose, out_of_order
from gnn_backend.runtime.gemm_units import (
    ACCESS,
    columns_for,
    linear_unit,
    weight_grad_sum_unit,
    weight_grad_unit,
)
from gnn_backend.runtime.instances import Unit
from gnn_backend.runtime.relational import device
from gnn_backend.runtime.selection import DTYPE_NAMES

TARGETS = ("cuda", "numba")
_WAYS: dict[Way, str] = {
    "mm": "one product of torch",
    "grouped": "torch's grouped product",
    "segments": "a product of torch for each type",
    "kernel": "the product kernel",
}


class Module(NamedTuple):
    """A text that is compiled.

    Attributes
    ----------
    name : str
        Of the unit or module as it is loaded; of a generated one it ends with the text's hash.
    text : str
    generated : bool
        By an emitter; else it instantiates a kernel that is there.
    """

    name: str
    text: str
    generated: bool

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


@dataclass(frozen=True)
class Spec:
    """What a step launches.

    Attributes
    ----------
    lines : tuple of str
    modules : tuple of Module
        Empty where torch does it.
    """

    lines: tuple[str, ...]
    modules: tuple[Module, ...] = ()


def spec_of(step: Step, relations: Relations, target: str, dtype: torch.dtype) -> Spec:
    """Specification of a step.

    Parameters
    ----------
    step : Step
    relations : Relations
        Say which rows lie in order.
    target : {"cuda", "numba"}
    dtype : torch.dtype
        float32, bfloat16 or float16.
    """
    if isinstance(step, TraverseStep):
        return _traversal(step, relations, target, dtype)
    if isinstance(step, LinearStep):
        return _linear(step, relations, target, dtype)
    if isinstance(step, WeightGradStep):
        return _weight_grad(step, relations, target, dtype)
    assert isinstance(step, TorchStep)
    shapes = " x ".join(str(list(a.shape)) for a in step.outputs[0].args)
    return Spec((f"torch: {step.outputs[0].op} of {shapes or 'nothing'}",))


def _traversal(step: TraverseStep, relations: Relations, target: str, dtype: torch.dtype) -> Spec:
    lines = tuple(step.traversal.listing())
    if target == "numba":
        from gnn_backend.runtime.relational import cpu

        module = Module(*cpu.module_of(step.traversal, relations, dtype), True)
        return Spec(lines, (module,))
    try:
        unit, shape = device.unit_of(step.traversal, DTYPE_NAMES[dtype])
    except Unsupported as missing:
        return Spec((*lines, f"plain torch, {missing}"))
    layout = f"{shape.lanes} lanes an element, {shape.heads} heads, {shape.values} values a lane"
    return Spec((*lines, layout), (Module(unit.name, unit.source, True),))


def _linear(step: LinearStep, relations: Relations, target: str, dtype: torch.dtype) -> Spec:
    value, weight = step.outputs[0], step.weight
    heads, transposed = len(weight.shape) == 3, bool(value.attrs["transposed"])
    inner, outer = weight.shape[-2:][:: -1 if transposed else 1]
    places = relations.incidence(weight.domain, value.domain)
    if weight.domain is Domain.PARAM and not heads:
        apart = relations.index(value.domain, step.x.domain) is not None
        way: Way = "mm"
    else:
        apart = places.index(step.x.domain) is not None or places.order is not None
        way = _way(step.x.shape, relations, weight.domain, (inner, outer), apart, heads,
                   target, dtype)  # fmt: skip
    sizes = f"{relations.num(value.domain):,} rows, [{inner}, {outer}]"
    how = "".join((", transposed" if transposed else "", ", a weight a head" if heads else ""))
    indexed = ", rows read or written by an index" if apart else ""
    lines = f"{sizes} for each {weight.domain.value}{how}{indexed}", _WAYS[way]
    if way != "kernel":
        return Spec(lines)
    tensor = _on_tensor_cores(dtype)
    aligned = _aligned(dtype, inner, outer)
    unit = linear_unit(DTYPE_NAMES[dtype], tensor, columns_for(outer, tensor), aligned)
    return Spec(lines, (_instance(unit),))


def _weight_grad(
    step: WeightGradStep, relations: Relations, target: str, dtype: torch.dtype
) -> Spec:
    value = step.outputs[0]
    heads = bool(value.attrs["heads"])
    inner, outer = step.x.shape[-1], step.grad.shape[-1]
    places = relations.incidence(value.domain, step.elements)
    apart = any(places.index(end.domain) is not None for end in (step.x, step.grad))
    way = _way(step.x.shape, relations, value.domain, (inner, outer), apart, heads, target, dtype)
    sizes = f"{relations.num(step.elements):,} rows into [{inner}, {outer}]"
    how = ", a weight a head" if heads else ""
    indexed = ", rows read by an index" if apart else ""
    lines = f"{sizes} for each {value.domain.value}{how}{indexed}", _WAYS[way]
    if way != "kernel":
        return Spec(lines)
    name = DTYPE_NAMES[dtype]
    unit = weight_grad_unit(name, _on_tensor_cores(dtype), _aligned(dtype, inner, outer), False)
    return Spec(lines, (_instance(unit), _instance(weight_grad_sum_unit(name))))


def _way(
    rows: tuple[int, ...], relations: Relations, types: Domain, columns: tuple[int, int],
    gathered: bool, heads: bool, target: str, dtype: torch.dtype,
) -> Way:  # fmt: skip
    number = relations.num(types)
    scattered = out_of_order(1 + len(rows), number, gathered)
    on_gpu = target == "cuda" and torch.cuda.is_available()
    capability = torch.cuda.get_device_capability() if on_gpu else None
    return choose(Product(dtype, number, *columns, scattered, heads, target == "cuda", capability))


def _on_tensor_cores(dtype: torch.dtype) -> bool:
    return dtype != torch.float32 or allows_tf32()


def _aligned(dtype: torch.dtype, *columns: int) -> bool:
    return all(n * dtype.itemsize % ACCESS == 0 for n in columns)


def _instance(unit: Unit) -> Module:
    return Module(unit.name, unit.source, False)

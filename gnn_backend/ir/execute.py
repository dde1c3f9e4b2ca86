"""Compiled programs: forward and backward plans, and their place in torch's autograd.

Backward is the program that reverse mode derives from the optimised forward program. What forward
stored anyway is saved for it (inputs, products, log-sum-exps, outputs); what forward streamed is
computed again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_backend.errors import Unsupported
from gnn_backend.graph.relations import Relations
from gnn_backend.ir import values as ir
from gnn_backend.ir.autodiff import differentiate
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.lower import Plan, lower
from gnn_backend.ir.passes import DEFAULT, Options, optimise
from gnn_backend.ir.values import Program, Value
from gnn_backend.ops.softmax_attention import observed

_KEPT = 256  # compiled programs
#: What costs nothing to make again, or belongs to the graph.
_NOT_SAVED = ("degree", "const", "input")


class Backward(NamedTuple):
    """The plan of some gradients.

    Attributes
    ----------
    plan : Plan
        Its outputs are the gradients of ``names``.
    names : tuple of str
    saved : dict of Value to Value
        Stored values of the forward plan -> the inputs that they are here.
    """

    plan: Plan
    names: tuple[str, ...]
    saved: dict[Value, Value]


def derive(
    forward: Plan,
    names: tuple[str, ...],
    sizes: Mapping[Domain, int],
    options: Options = DEFAULT,
    say: Callable[[str, Program], None] | None = None,
) -> Backward:
    """The plan of gradients of a lowered program.

    Parameters
    ----------
    forward : Plan
    names : tuple of str
        Inputs that want gradients.
    sizes, options
        As for :func:`gnn_backend.ir.passes.optimise`.
    say : callable, optional
        Called with ``differentiate`` and the program as it is derived, then with the name of each
        pass that changed it and what is left, in which values that forward stored are inputs.
    """
    stored = {v for v in forward.stored() if v.op not in _NOT_SAVED}

    def tell(name: str, program: Program, joint: bool = True) -> None:
        if say is not None:
            say(name, _cut(program, stored)[0] if joint else program)

    joint = differentiate(forward.program, names)
    tell("differentiate", joint)
    cut, saved = _cut(optimise(joint, sizes, options, reuse=stored, say=tell), stored)
    rest = optimise(cut, sizes, options, say=partial(tell, joint=False))
    return Backward(lower(rest), names, saved)


def _cut(joint: Program, stored: Collection[Value]) -> tuple[Program, dict[Value, Value]]:
    """The program with inputs for stored values, and which input each became."""
    saved: dict[Value, Value] = {}

    def rule(value: Value, args: tuple[Value, ...]) -> Value | None:
        if value not in stored:
            return None
        name = f"saved:{len(saved)}"
        return saved.setdefault(value, ir.input_value(name, value.domain, value.shape))

    cut = ir.rewrite(joint, rule)
    used = set(cut.values())
    saved = {v: given for v, given in saved.items() if given in used}
    inputs = (*(v for v in joint.inputs if v in used), *saved.values())
    return Program(inputs, cut.outputs), saved


class Executable:
    """A program compiled for graphs of about the same sizes.

    Parameters
    ----------
    program : Program
    sizes : mapping of Domain to int
        Rows of each domain, by which passes decide.
    options : Options
        Of the passes.
    """

    def __init__(
        self, program: Program, sizes: Mapping[Domain, int], options: Options = DEFAULT
    ) -> None:
        self.sizes, self.options = dict(sizes), options
        self.inputs = program.inputs
        self.forward = lower(optimise(program, sizes, options))
        self._backward: dict[frozenset[str], Backward] = {}
        self._lock = threading.Lock()

    def backward(self, wanted: frozenset[str]) -> Backward:
        """The plan of the gradients of these inputs, made at the first use."""
        with self._lock:
            if wanted not in self._backward:
                self._backward[wanted] = self._derived(wanted)
            return self._backward[wanted]

    def _derived(self, wanted: frozenset[str]) -> Backward:
        names = tuple(str(v.attrs["name"]) for v in self.inputs if v.attrs["name"] in wanted)
        return derive(self.forward, names, self.sizes, self.options)

    def __call__(self, relations: Relations, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Run it, differentiably.

        Parameters
        ----------
        relations : Relations
        tensors : mapping of str to Tensor
            Of every input, checked, contiguous or not: [rows, *shape], parameters [*shape].

        Returns
        -------
        list of Tensor
        """
        names = tuple(str(v.attrs["name"]) for v in self.inputs)
        given = [tensors[name] for name in names]
        if observed(given):
            return list(_Run.apply(self, relations, names, *given))
        plan = self.forward
        values = {v: _rows(v, t) for v, t in zip(plan.program.inputs, given, strict=True)}
        found = plan.run(relations, values)
        return [_user(v, found[v]) for v in plan.program.outputs]

    def describe(self) -> list[str]:
        """One line a step of the forward plan, with its rows."""
        return describe(self.forward, self.sizes)


def describe(plan: Plan, sizes: Mapping[Domain, int]) -> list[str]:
    """One line a step: what it does, and the rows and shape that it leaves."""
    lines = []
    for step in plan.steps:
        left = ", ".join(f"[{sizes[v.domain]:,}, {v.size}]" for v in step.outputs)
        lines.append(f"{step.describe()} -> {left}")
    return lines


class _Run(torch.autograd.Function):
    """Runs the forward plan; saves what the backward plan reads."""

    @staticmethod
    def forward(
        ctx: Any, executable: Executable, relations: Relations, names: tuple[str, ...],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        wanted = frozenset(
            name for name, need in zip(names, ctx.needs_input_grad[3:], strict=True) if need
        )
        back = executable.backward(wanted) if wanted else None
        plan = executable.forward
        given = dict(zip(names, tensors, strict=True))
        values = {v: _rows(v, given[str(v.attrs["name"])]) for v in plan.program.inputs}
        found = plan.run(relations, values, back.saved if back else ())
        ctx.call = executable, relations, names, wanted
        if back is not None:
            ctx.save_for_backward(*tensors, *(found[v] for v in back.saved))
        return tuple(_user(v, found[v]) for v in plan.program.outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise Unsupported("double-backward", "a compiled program")
        executable, relations, names, wanted = ctx.call
        back = executable.backward(wanted)
        tensors, saved = ctx.saved_tensors[: len(names)], ctx.saved_tensors[len(names) :]
        given = dict(zip(names, tensors, strict=True))
        given |= {f"grad:{k}": grad for k, grad in enumerate(grads)}
        here = dict(zip(back.saved.values(), saved, strict=True))
        plan = back.plan
        values = {
            v: here[v] if v in here else _rows(v, given[str(v.attrs["name"])])
            for v in plan.program.inputs
        }
        found = plan.run(relations, values)
        by_name = {
            name: _grad(found[v], v, given[name])
            for name, v in zip(back.names, plan.program.outputs, strict=True)
        }
        return (None, None, None, *(by_name.get(name) for name in names))


def _rows(value: Value, tensor: Tensor) -> Tensor:
    """As stored: a parameter is one row."""
    tensor = tensor.detach()
    return (tensor[None] if value.domain is Domain.PARAM else tensor).contiguous()


def _user(value: Value, tensor: Tensor) -> Tensor:
    """As users have it; never a tensor that was given, which autograd would take for changed."""
    return tensor[0] if value.domain is Domain.PARAM else tensor


def _grad(found: Tensor, value: Value, like: Tensor) -> Tensor:
    if value.domain is Domain.PARAM and found.dim() == like.dim() + 1:
        found = found[0]
    return found.expand(like.shape)


@lru_cache(maxsize=_KEPT)
def _compiled(
    outputs: tuple[Value, ...], inputs: tuple[Value, ...], sizes: tuple[int, ...], options: Options
) -> Executable:
    return Executable(Program(inputs, outputs), dict(zip(Domain, sizes, strict=True)), options)


def compiled(program: Program, relations: Relations, options: Options = DEFAULT) -> Executable:
    """The program, compiled for graphs about as large as this one.

    Parameters
    ----------
    program : Program
    relations : Relations
    options : Options
        Of the passes.
    """
    sizes = relations.plans.get("sizes")
    if sizes is None:
        sizes = relations.plans["sizes"] = tuple(_about(relations.num(d)) for d in Domain)
    return _compiled(program.outputs, program.inputs, sizes, options)


def _about(count: int) -> int:
    """To one part in eight, so that batches of about one size share what is compiled."""
    step = 1 << max(0, count.bit_length() - 4)
    return -(-count // step) * step

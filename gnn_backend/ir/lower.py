"""From a program to steps: typed products, fused traversals, and torch for what is small.

Products and reductions are stored, and what several of them or another domain reads; values of
edges between them are computed where they are used, and never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.fusion import (
    REDUCED,
    SMALL,
    STREAMED,
    Unfusable,
    Wanted,
    by_index,
    is_number,
    reads_of,
    stored_values,
    traversal_of,
)
from gnn_backend.ir.passes.simplify import simplify
from gnn_backend.ir.products import as_weighted
from gnn_backend.ir.steps import LinearStep, Step, TorchStep, TraverseStep, WeightGradStep
from gnn_backend.ir.values import Program, Value


@dataclass(frozen=True)
class Plan:
    """A lowered program.

    Attributes
    ----------
    program : Program
        As it was lowered.
    steps : tuple of Step
    frees : tuple of tuple of Value
        After each step, what nobody reads any more.
    """

    program: Program
    steps: tuple[Step, ...]
    frees: tuple[tuple[Value, ...], ...]

    def stored(self) -> list[Value]:
        """What the steps leave."""
        return [value for step in self.steps for value in step.outputs]

    def run(
        self, relations: Relations, given: dict[Value, Tensor], keep: Iterable[Value] = ()
    ) -> dict[Value, Tensor]:
        """Run the steps, without autograd.

        Parameters
        ----------
        relations : Relations
        given : dict
            Tensors of the inputs, [rows, *shape].
        keep : iterable of Value
            Stored values that are wanted beside the outputs.

        Returns
        -------
        dict
            Tensors of the outputs, and of ``keep``.
        """
        dtype = next((t.dtype for t in given.values()), torch.get_default_dtype())
        held, kept = dict(given), {*self.program.outputs, *keep}
        with torch.no_grad():
            for step, done in zip(self.steps, self.frees, strict=True):
                tensors = step.run(held, relations, dtype)
                held.update(zip(step.outputs, tensors, strict=True))
                for value in done:
                    if value not in kept:
                        held.pop(value, None)
        return {value: held[value] for value in kept if value in held}


def lower(program: Program) -> Plan:
    """Lower a program.

    Parameters
    ----------
    program : Program
        After the passes.

    Returns
    -------
    Plan
        Of as many steps as the program has products and groups of reductions, whatever the graph.
    """
    program = simplify(program)
    stored = stored_values(program)
    while True:
        try:
            steps = _ordered(_Units(program, stored).made(), program)
            break
        except Unfusable as error:
            assert error.value not in stored
            stored.add(error.value)
    return Plan(program, steps, _frees(steps, program))


class _Units:
    """Groups of stored values, each computed by one step."""

    def __init__(self, program: Program, stored: set[Value]) -> None:
        self.stored = stored
        self.weighted = {}
        for value in program.values():
            found = as_weighted(value) if value in stored else None
            if found is not None and found.lse in stored and len(found.logit.shape) <= 1:
                self.weighted[value] = found
        self.values = [v for v in program.values() if v in stored and v.op != "input"]
        self.number = {value: n for n, value in enumerate(self.values)}
        self.needs: list[int] = []  # by number, a bit for each stored value that it is made of
        for value in self.values:
            bits = 0
            for read in self.reads(value):
                if read in self.number:
                    bits |= self.needs[self.number[read]] | 1 << self.number[read]
            self.needs.append(bits)

    def reads(self, value: Value) -> list[Value]:
        """Stored values that a step for this one alone would read."""
        form = self.weighted.get(value)
        if form is None:
            return reads_of(value, self.stored)
        roots = (form.value, form.logit)
        found = [
            r for root in roots if root not in self.stored for r in reads_of(root, self.stored)
        ]
        return [*found, *(r for r in roots if r in self.stored)]

    def made(self) -> list[Step]:
        groups: list[_Group] = []
        steps: list[Step] = []
        for value in self.values:
            kind = _kind(value)
            if kind is None:
                steps.append(self._single(value))
                continue
            one = _Group(kind, [value], 1 << self.number[value], self.needs[self.number[value]])
            groups = [*groups, one]
        for group in _joined(groups):
            steps += self._fused(group.values)
        return steps

    def _single(self, value: Value) -> Step:
        if value.op == "linear":
            x, weight = value.args
            return LinearStep((value,), self._source(value, x), weight)
        if value.op == "weight_grad":
            x, grad = (self._source(value, a) for a in value.args)
            return WeightGradStep((value,), x, grad, value.args[0].domain)
        for arg in value.args:
            if arg not in self.stored and not is_number(arg):
                raise Unfusable(arg)
        return TorchStep((value,))

    def _source(self, consumer: Value, arg: Value) -> Value:
        """Whose rows a product reads: those of a gather's argument, through an index."""
        if arg in self.stored:
            return arg
        inner = arg.args[0] if by_index(consumer, arg) else None
        if inner is None or inner not in self.stored or inner.domain is Domain.PARAM:
            raise Unfusable(arg if inner is None or inner in self.stored else inner)
        return inner

    def _fused(self, group: Sequence[Value]) -> list[Step]:
        wanted = [Wanted(v, self.weighted.get(v)) for v in group]
        reduces = group[0].op == "reduce"
        rows = group[0].domain if reduces else None
        elements = group[0].args[0].domain if reduces else group[0].domain
        try:
            traversal, inputs = traversal_of(rows, elements, wanted, self.stored)
        except Unfusable as error:
            if len(group) > 1:
                return [step for value in group for step in self._fused([value])]
            return [self._alone(group[0], error.value)]
        return [TraverseStep(tuple(group), traversal, tuple(inputs))]

    def _alone(self, value: Value, blamed: Value) -> Step:
        """A value that has no kernel as it is: what is in the way is stored, or torch does it."""
        if blamed is not value and blamed not in self.stored:
            raise Unfusable(blamed)
        return self._single(value)


@dataclass
class _Group:
    """Values that one kernel computes.

    Attributes
    ----------
    kind : object
        Of what groups that may be joined have in common.
    values : list of Value
    members, needs : int
        Bits of the values, and of what they are made of.
    """

    kind: object
    values: list[Value]
    members: int
    needs: int


def _kind(value: Value) -> object:
    """Row and element domain of the kernel that may compute a value; None: no kernel does."""
    if value.op == "reduce" and value.attrs["how"] in REDUCED:
        if value.attrs["how"] == "lse" and len(value.shape) > 1:
            return None  # of more numbers than a row has heads
        return value.domain, value.args[0].domain
    if value.op in STREAMED and value.domain not in SMALL:
        return None, value.domain
    return None


def _joined(groups: Sequence[_Group]) -> list[_Group]:
    """Groups of one kind made one, wherever neither is made of the other.

    What needs a group needs all of what that group needs, so joining adds needs: they are kept up
    to date for all groups, lest two joined ones need each other.
    """
    made: list[_Group] = []
    for group in groups:
        needs = _closed(group.needs, made)
        for other in reversed(made):
            apart = not (needs & other.members) and not (_closed(other.needs, made) & group.members)
            if other.kind == group.kind and apart:
                other.values += group.values
                other.members |= group.members
                other.needs |= needs
                break
        else:
            made.append(_Group(group.kind, list(group.values), group.members, needs))
    return made


def _closed(needs: int, groups: Sequence[_Group]) -> int:
    """Needs, with those of the groups that they touch."""
    while True:
        more = needs
        for group in groups:
            if more & group.members:
                more |= group.members | group.needs
        if more == needs:
            return needs
        needs = more


def _ordered(steps: Sequence[Step], program: Program) -> tuple[Step, ...]:
    """The steps, each after those whose results it reads."""
    maker = {value: step for step in steps for value in step.outputs}
    done: dict[int, Step] = {}
    pending = [maker[v] for v in program.outputs if v in maker][::-1]
    active: set[int] = set()
    while pending:
        step = pending[-1]
        if id(step) in done:
            pending.pop()
            continue
        missing = [maker[r] for r in step.reads() if r in maker and id(maker[r]) not in done]
        if not missing:
            done[id(step)] = pending.pop()
            active.discard(id(step))
            continue
        assert id(step) not in active, "steps that need each other"
        active.add(id(step))
        pending += missing
    return tuple(done.values())


def _frees(steps: Sequence[Step], program: Program) -> tuple[tuple[Value, ...], ...]:
    last: dict[Value, int] = {}
    for number, step in enumerate(steps):
        for value in (*step.reads(), *step.outputs):
            last[value] = number
    kept = set(program.outputs)
    by_step: list[list[Value]] = [[] for _ in steps]
    for value, number in last.items():
        if value not in kept:
            by_step[number].append(value)
    return tuple(map(tuple, by_step))

"""Everything that becomes of a relational program, from its source to the text of its kernels."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.execute import Executable, compiled, derive, describe
from gnn_backend.ir.kernel_specs import Module, Spec, spec_of
from gnn_backend.ir.lower import Plan
from gnn_backend.ir.passes import DEFAULT, Options, optimise
from gnn_backend.ir.savings import Recorder, Report
from gnn_backend.ir.values import Program


@dataclass(frozen=True)
class Direction:
    """The forward or the backward program.

    Attributes
    ----------
    name : {"forward", "backward"}
    start : Program
        As it was traced, or derived.
    reports : tuple of Report
        Of the passes.
    plan : Plan
    steps : tuple of str
        What each step of the plan does, with the rows and shape that it leaves.
    specs : tuple of Spec
        Of each step.
    """

    name: str
    start: Program
    reports: tuple[Report, ...]
    plan: Plan
    steps: tuple[str, ...]
    specs: tuple[Spec, ...]

    def modules(self) -> list[Module]:
        """What is compiled, each once."""
        return list(dict.fromkeys(m for spec in self.specs for m in spec.modules))


@dataclass(frozen=True)
class Emission:
    """What becomes of a program on the graphs of one size.

    Attributes
    ----------
    directions : tuple of Direction
        Forward, and backward if it was asked for.
    """

    directions: tuple[Direction, ...]

    def modules(self) -> list[Module]:
        """What is compiled for all of them, each once."""
        return list(dict.fromkeys(m for d in self.directions for m in d.modules()))


def emit(
    program: Program,
    relations: Relations,
    options: Options = DEFAULT,
    *,
    target: str = "cuda",
    dtype: torch.dtype = torch.float32,
    backward: bool = False,
) -> Emission:
    """Compile a program as a call would, and keep what there is on the way.

    Parameters
    ----------
    program : Program
        As traced.
    relations : Relations
    options : Options
        Of the passes.
    target : {"cuda", "numba"}
    dtype : torch.dtype
        Of the tensors.
    backward : bool
        Gradients of all inputs as well.
    """
    made = compiled(program, relations, options)
    rows = {domain: relations.num(domain) for domain in Domain}
    recorder = Recorder(rows, program, dtype.itemsize)
    optimise(program, made.sizes, options, say=recorder)
    plans = [("forward", made.forward, recorder)]
    if backward:
        plans.append(("backward", *_backward(made, rows, dtype)))
    return Emission(
        tuple(
            Direction(
                name,
                noted.start or plan.program,
                tuple(noted.reports),
                plan,
                tuple(describe(plan, rows)),
                tuple(spec_of(step, relations, target, dtype) for step in plan.steps),
            )
            for name, plan, noted in plans
        )
    )


def _backward(
    made: Executable, rows: Mapping[Domain, int], dtype: torch.dtype
) -> tuple[Plan, Recorder]:
    names = tuple(str(v.attrs["name"]) for v in made.inputs)
    recorder = Recorder(rows, itemsize=dtype.itemsize)
    derived = derive(made.forward, names, made.sizes, made.options, recorder)
    return derived.plan, recorder


def source_of(function: object) -> str:
    """Text of a Python function, its decorators among it.

    Parameters
    ----------
    function : function
        In a file.
    """
    return textwrap.dedent(inspect.getsource(function))  # type: ignore[arg-type]


def logical_lines(source: str) -> int:
    """Statements of Python, imports and docstrings among them, and decorators."""
    nodes = list(ast.walk(ast.parse(source)))
    decorated = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    statements = sum(isinstance(n, ast.stmt) for n in nodes)
    return statements + sum(len(n.decorator_list) for n in decorated)

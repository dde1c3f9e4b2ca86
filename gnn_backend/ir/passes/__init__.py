"""What is done to a program before it is lowered, in this order, until nothing changes.

1. :mod:`simplify`: canonical forms.
2. :mod:`hoist`: to nodes and types, and to pairs (compact materialization).
3. :mod:`factor`: out of sums.
4. :mod:`reorder`: linear operators, among them those around sums (:mod:`around_sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from gnn_backend.ir.domains import Domain
from gnn_backend.ir.passes.factor import factor
from gnn_backend.ir.passes.hoist import hoist
from gnn_backend.ir.passes.reorder import reorder
from gnn_backend.ir.passes.simplify import simplify
from gnn_backend.ir.values import Program, Value

_ROUNDS = 8  # of all passes; programs settle in two or three
_Pass = tuple[str, Callable[[Program], Program]]


@dataclass(frozen=True)
class Options:
    """Which optimizations are made.

    Attributes
    ----------
    compact : bool, optional
        Compact materialization: always, never, or (None) where it saves rows.
    reorder : bool
        Linear operator reordering.
    """

    compact: bool | None = None
    reorder: bool = True


DEFAULT = Options()
#: By the names that benchmarks and commands have for them: C is compact materialization, F linear
#: operator reordering.
NAMED = {
    "auto": DEFAULT,
    "vanilla": Options(compact=False, reorder=False),
    "c": Options(compact=True, reorder=False),
    "f": Options(compact=False, reorder=True),
    "cf": Options(compact=True, reorder=True),
}


def optimise(
    program: Program,
    sizes: Mapping[Domain, int],
    options: Options = DEFAULT,
    reuse: Collection[Value] = (),
    say: Callable[[str, Program], None] = lambda name, program: None,
) -> Program:
    """Run the passes until nothing changes.

    Parameters
    ----------
    program : Program
    sizes : mapping of Domain to int
        Rows of each domain.
    options : Options
    reuse : collection of Value
        What is stored in any case, so that it costs nothing to refer to it.
    say : callable
        Called with the name of each pass that changed the program, and what it made of it.
    """
    first: list[_Pass] = [
        ("simplify", simplify),
        ("hoist", lambda program: hoist(program, sizes, options.compact)),
        ("factor", lambda program: factor(program, reuse)),
    ]
    # Linear operators are weighed against each other where they stand in the end.
    second: list[_Pass] = [("reorder", lambda program: reorder(program, sizes, reuse))]
    for _ in range(_ROUNDS):
        before = program.outputs
        program = _settled(program, first, say)
        if options.reorder:
            program = _run(program, second, say)
        if program.outputs == before:
            break
    return simplify(program)


def _settled(program: Program, passes: list[_Pass], say: Callable[[str, Program], None]) -> Program:
    for _ in range(_ROUNDS):
        changed = _run(program, passes, say)
        if changed.outputs == program.outputs:
            break
        program = changed
    return program


def _run(program: Program, passes: list[_Pass], say: Callable[[str, Program], None]) -> Program:
    for name, one in passes:
        changed = one(program)
        if changed.outputs != program.outputs:
            say(name, changed)
        program = changed
    return program

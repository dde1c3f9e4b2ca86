"""What is done to a program before it is lowered, in this order, until nothing changes.

1. :mod:`simplify`: canonical forms.
2. :mod:`hoist`: to nodes and types, and to pairs (compact materialization).
3. :mod:`factor`: out of sums.
4. :mod:`reorder`: linear operators.
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


def passes(
    sizes: Mapping[Domain, int], options: Options, reuse: Collection[Value] = ()
) -> list[tuple[str, Callable[[Program], Program]]]:
    """The passes with their names, in order."""
    found: list[tuple[str, Callable[[Program], Program]]] = [
        ("simplify", simplify),
        ("hoist", lambda program: hoist(program, sizes, options.compact)),
        ("factor", lambda program: factor(program, reuse)),
    ]
    if options.reorder:
        found.append(("reorder", lambda program: reorder(program, sizes)))
    return found


def optimise(
    program: Program,
    sizes: Mapping[Domain, int],
    options: Options = Options(),
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
    for _ in range(_ROUNDS):
        before = program.outputs
        for name, one in passes(sizes, options, reuse):
            changed = one(program)
            if changed.outputs != program.outputs:
                say(name, changed)
            program = changed
        if program.outputs == before:
            break
    return simplify(program)

"""Domain inference: compute a value once for each row that it depends on.

An operator on values that are all read from coarser domains is computed in the coarsest domain that
has all of them, and read after. To nodes and types always, where they are fewer. To pairs (source
or destination, edge type) only what will be stored, and what is made of such: *compact
materialization* (Wu et al., 2024), the rows of a typed product falling from the edges to the
distinct pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain, join
from gnn_backend.ir.passes.finite import has_extremes
from gnn_backend.ir.values import Program, Value

PAIRS = (Domain.SRC_PAIR, Domain.DST_PAIR)
_VIEWS = ("reshape", "slice", "transpose")
_MOVED = frozenset((*ir.UNARY, *ir.BINARY, *_VIEWS,
                    "dot", "outer", "concat", "linear", "matmul", "row_sum"))  # fmt: skip
#: Above this share of distinct pairs an indirection costs what it saves.
MOST_PAIRS = 0.9

Sizes = Mapping[Domain, int]


def hoist(program: Program, sizes: Sizes, compact: bool | None = None) -> Program:
    """Move what can be computed for fewer rows there.

    Parameters
    ----------
    program : Program
    sizes : mapping of Domain to int
        Rows of each domain.
    compact : bool, optional
        Whether to pairs too; None: where they are few enough.
    """

    def rule(value: Value, args: tuple[Value, ...]) -> Value | None:
        to = target(value, args)
        if to is None or not _allowed(value, args, to, sizes, compact):
            return None
        inner = tuple(_read_at(a, to) for a in _moved_args(value, args))
        fixed = args[1:] if value.op == "linear" else ()
        moved = ir.make(value.op, (*inner, *fixed), to, value.shape, **value.attrs)
        return ir.gather(moved, value.domain)

    return ir.rewrite(program, rule)


def target(value: Value, args: tuple[Value, ...]) -> Domain | None:
    """The coarsest domain that an operator can be computed in, if it is not its own."""
    if value.op not in _MOVED:
        return None
    moved = _moved_args(value, args)
    if not all(a.op == "gather" for a in moved):
        return None
    domains = [a.args[0].domain for a in moved]
    if value.op == "linear":
        domains.append(args[1].domain)
    try:
        found = join(domains)
    except ValueError:  # node types beside edge types: of which end?
        return None
    return None if found is value.domain else found


def _moved_args(value: Value, args: tuple[Value, ...]) -> tuple[Value, ...]:
    return args[:1] if value.op == "linear" else args  # its weight is not read row by row


def _read_at(arg: Value, to: Domain) -> Value:
    return ir.gather(arg.args[0], to)


def _allowed(
    value: Value, args: tuple[Value, ...], to: Domain, sizes: Sizes, compact: bool | None
) -> bool:
    if to not in PAIRS:  # whose rows may have no elements
        if value.op not in _VIEWS and any(has_extremes(a) for a in args):
            return False
        return sizes[to] <= max(sizes[value.domain], 1)
    if compact is False:
        return False
    stored = value.op == "linear"
    if value.op in _VIEWS:
        return True  # it is read from there already
    made_of_stored = any(a.args[0].domain in PAIRS for a in _moved_args(value, args))
    if not (stored or made_of_stored):
        return False
    return compact is True or sizes[to] <= MOST_PAIRS * sizes[value.domain]

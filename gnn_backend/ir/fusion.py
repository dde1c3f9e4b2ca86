"""Which values are stored, and the traversals that compute what lies between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain
from gnn_backend.ir.products import Weighted
from gnn_backend.ir.traversal import Reduction, Step, Store, Table, Traversal
from gnn_backend.ir.values import Program, Shape, Value

#: Operators that a kernel computes on the way.
STREAMED = frozenset((*ir.UNARY, *ir.BINARY, "dot", "gather"))
#: Domains with so few rows that torch computes their values.
SMALL = frozenset((Domain.PARAM, Domain.NODE_TYPE, Domain.EDGE_TYPE))
#: Reductions that traversals have; a mean is a sum and a division.
REDUCED = frozenset(("sum", "max", "min", "lse"))


class Unfusable(Exception):
    """A value has no place in a kernel; it must be stored."""

    def __init__(self, value: Value) -> None:
        super().__init__(repr(value))
        self.value = value


def by_index(consumer: Value, arg: Value) -> bool:
    """Whether a product reads an argument's rows through an index, so that no copy is made."""
    return consumer.op in ("linear", "weight_grad") and arg.op == "gather"


def stored_values(program: Program) -> set[Value]:
    """Values that are kept in memory; the others are computed where they are used."""
    stored: set[Value] = set()
    consumers, outputs = program.consumers(), set(program.outputs)
    for value in program.values():
        if value.op not in STREAMED or value.domain in SMALL or value in outputs:
            stored.add(value)
            continue
        for consumer in consumers[value]:
            if consumer.op == "reduce" or (consumer.op in STREAMED and consumer.op != "gather"):
                continue
            if not by_index(consumer, value):
                stored.add(value)
    return {v for v in stored if v.op != "const" or v.shape or v in outputs}


def reads_of(value: Value, stored: set[Value]) -> list[Value]:
    """The stored values that a value is computed from, by way of streamed ones."""
    found: dict[Value, None] = {}
    seen: set[Value] = set()
    pending = list(value.args)
    while pending:
        arg = pending.pop()
        if arg in seen:
            continue
        seen.add(arg)
        if arg in stored:
            found[arg] = None
        else:
            pending += arg.args
    return list(found)


# --------------------------------------------------------------------------- code


@dataclass
class Wanted:
    """What a traversal is to leave: values, and of sums that are weighted the form."""

    value: Value
    weighted: Weighted | None = None

    @property
    def has_logits(self) -> bool:
        """Whether it takes a softmax's statistics."""
        return self.weighted is not None or self.value.attrs.get("how") == "lse"


@dataclass
class Code:
    """A traversal while it is put together."""

    rows: Domain | None
    elements: Domain
    stored: set[Value]
    rank: int = 0
    inputs: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    registers: dict[Value, int] = field(default_factory=dict)

    def shape(self, value: Value) -> tuple[int, int]:
        return as_table(value.shape, self.rank)

    def table(self, value: Value) -> Table:
        return Table(value.domain, *self.shape(value))

    def register(self, value: Value) -> int:
        """The register of a value of the element domain, its steps added where it is new."""
        if value not in self.registers:
            self.registers[value] = self._add(value)
        return self.registers[value]

    def _add(self, value: Value) -> int:
        if value in self.stored:
            return self._load(value)
        if value.op == "gather":
            if is_number(value):
                return self._step(Step("const", (), 1, 1, True, value=number_of(value)))
            inner = value.args[0]
            if inner not in self.stored:
                raise Unfusable(inner)
            return self._load(inner)
        if value.op not in STREAMED or self._sums_heads(value):
            raise Unfusable(value)
        args = tuple(self.register(arg) for arg in value.args)
        per_row = all(self.steps[a].per_row for a in args)
        slope = float(value.attrs.get("slope", 0.0))  # type: ignore[arg-type]
        return self._step(Step(value.op, args, *self.shape(value), per_row, value=slope))

    def _sums_heads(self, value: Value) -> bool:
        """A dot product of rows [H] beside rows [H, D], along what are heads there."""
        return value.op == "dot" and len(value.args[0].shape) < self.rank

    def _load(self, value: Value) -> int:
        if value not in self.inputs:
            self.inputs.append(value)
        table, number = self.table(value), self.inputs.index(value)
        shell = Traversal(self.rows, self.elements, 1, 1, (), (), ())
        per_row = shell.by_row(table) or table.domain is Domain.PARAM
        return self._step(Step("load", (), table.heads, table.dim, per_row, table=number))

    def _step(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1


def traversal_of(
    rows: Domain | None, elements: Domain, wanted: Sequence[Wanted], stored: set[Value]
) -> tuple[Traversal, list[Value]]:
    """The kernel that computes these values, and the stored ones that it reads.

    Parameters
    ----------
    rows : Domain or None
        None: values are rows of ``elements``; else reductions of them into ``rows``.
    elements : Domain
    wanted : sequence of Wanted
    stored : set of Value

    Raises
    ------
    Unfusable
        A value has to be stored before.
    """
    made = {w.value for w in wanted}
    code = Code(rows, elements, stored - made)
    roots = [root for w in wanted for root in _roots(w)]
    code.rank = _rank(roots, code.stored, made)
    if code.rank == 1 and any(w.has_logits for w in wanted):
        code.rank = 2  # each number of a logit has statistics of its own, as a head has
    reductions, stores = [], []
    for place, w in enumerate(wanted):
        if rows is None:
            stores.append(Store(code.register(w.value), place))
        elif w.weighted is not None:
            value, logit = (code.register(v) for v in (w.weighted.value, w.weighted.logit))
            reductions.append(Reduction("softmax", value, place, logit))
        else:
            how = str(w.value.attrs["how"])
            reductions.append(Reduction(how, code.register(w.value.args[0]), place))
    outputs = tuple(code.table(w.value) for w in wanted)
    inputs = tuple(code.table(v) for v in code.inputs)
    heads, dim = _common(code, [*outputs, *inputs], made)
    traversal = Traversal(
        rows, elements, heads, dim, inputs, outputs, tuple(code.steps), tuple(reductions),
        tuple(stores),
    )  # fmt: skip
    return traversal, code.inputs


def _roots(wanted: Wanted) -> Iterable[Value]:
    if wanted.weighted is not None:
        return (wanted.weighted.value, wanted.weighted.logit)
    return (wanted.value,)


def as_table(shape: Shape, rank: int) -> tuple[int, int]:
    """Heads and width of a row in a kernel whose widest values have so many dimensions."""
    if rank <= 1:
        return (1, shape[0] if shape else 1)
    return (shape[0] if shape else 1, shape[1] if len(shape) > 1 else 1)


def _rank(roots: Sequence[Value], stored: set[Value], made: set[Value]) -> int:
    rank = 0
    seen: set[Value] = set()
    pending = list(roots)
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if len(value.shape) > 2:
            raise Unfusable(value)
        rank = max(rank, len(value.shape))
        if value not in stored and (value.op in STREAMED or value in made):
            pending += value.args
    return rank


def _common(code: Code, tables: Sequence[Table], made: set[Value]) -> tuple[int, int]:
    """Heads and width of the kernel; a value of any other is one too many."""
    sizes = [(t.heads, t.dim) for t in tables] + [(s.heads, s.dim) for s in code.steps]
    heads, dim = max(h for h, _ in sizes), max(d for _, d in sizes)
    for value in [*code.registers, *made]:
        h, d = code.shape(value)
        if h not in (1, heads) or d not in (1, dim):
            raise Unfusable(_other_width(code, made) or value)
    return heads, dim


def _other_width(code: Code, made: set[Value]) -> Value | None:
    """A dot product along another width than that of the results.

    Stored, it is one number where every value of the results' width would be stored instead.
    """
    width = max(code.shape(v)[1] for v in made)
    for value in code.registers:
        computed = value not in code.stored and value not in made
        if value.op == "dot" and computed and _is_along_another(code, value, width):
            return value
    return None


def _is_along_another(code: Code, dot: Value, width: int) -> bool:
    return all(code.shape(a)[1] not in (1, width) for a in dot.args)


def is_number(value: Value) -> bool:
    """Whether a value is a constant, written into the code that uses it; read by rows or not."""
    if value.op == "gather":
        return is_number(value.args[0])
    return value.op == "const" and not value.shape


def number_of(value: Value) -> float:
    """The constant that :func:`is_number` found."""
    while value.op == "gather":
        value = value.args[0]
    return float(value.attrs["value"])  # type: ignore[arg-type]

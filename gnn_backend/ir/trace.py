"""From a Python function over symbolic tables to a program.

The function is called once with symbols in the place of tensors. What is read by an edge's source
or destination alone stays a value of that node for as long as it is combined with nothing else,
since node types can be read by a node only; anything else is a value of edges. Pairs of node and
edge type come about by ``within`` alone. To compute on fewer rows is the task of the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gnn_backend.errors import invalid
from gnn_backend.ir import values as ir
from gnn_backend.ir.domains import Domain, join, reads
from gnn_backend.ir.values import Program, Shape, Value


class Arithmetic:
    """Operators of Python on what a program computes with."""

    __iter__ = None  # indexable, but no sequence

    def __add__(self, other: Operand) -> Symbol:
        return combine("add", self, other)

    def __radd__(self, other: Operand) -> Symbol:
        return combine("add", other, self)

    def __sub__(self, other: Operand) -> Symbol:
        return combine("sub", self, other)

    def __rsub__(self, other: Operand) -> Symbol:
        return combine("sub", other, self)

    def __mul__(self, other: Operand) -> Symbol:
        return combine("mul", self, other)

    def __rmul__(self, other: Operand) -> Symbol:
        return combine("mul", other, self)

    def __truediv__(self, other: Operand) -> Symbol:
        return combine("div", self, other)

    def __rtruediv__(self, other: Operand) -> Symbol:
        return combine("div", other, self)

    def __neg__(self) -> Symbol:
        return apply_row(symbol(self), lambda v: ir.unary("neg", v))

    def __bool__(self) -> bool:
        raise invalid("condition", "a program cannot branch on what it computes", self,
                      "a constant", "Constants are known when the program is traced.")  # fmt: skip


@dataclass(frozen=True)
class Index:
    """How rows of a table are read.

    Attributes
    ----------
    label : str
        As the program writes it.
    domain : Domain
        What the table has one row for.
    rows : Domain
        What the value that is read has one row for: edges, types, or destinations.
    end : Domain or None
        Of node types the node that has them.
    """

    label: str
    domain: Domain
    rows: Domain
    end: Domain | None = None


@dataclass(frozen=True)
class NodeIndex(Index):
    """A node of an edge; ``type`` reads what has one row for each node type."""

    @property
    def type(self) -> Index:
        return Index(f"{self.label}.type", Domain.NODE_TYPE, self.rows, self.domain)


@dataclass(frozen=True, eq=False)
class Symbol(Arithmetic):
    """A value of a program while it is traced.

    Attributes
    ----------
    value : Value
    rows : Domain
        What it has one row for in the program's eyes; ``value`` may be coarser.
    end : Domain or None
        Of a value of node types the node that has them.
    """

    value: Value
    rows: Domain
    end: Domain | None = None

    @property
    def shape(self) -> Shape:
        """Of one row."""
        return self.value.shape

    @property
    def domain(self) -> Domain:
        """The coarsest that reads it without doubt of which node's type is meant."""
        return self.end if self.end is not None else self.value.domain

    def at(self, domain: Domain) -> Value:
        """The value read in a finer domain."""
        value = self.value if self.end is None else ir.gather(self.value, self.end)
        return ir.gather(value, domain)

    def __getitem__(self, index: Index) -> Symbol:
        """Read what was aggregated, or a value of nodes, by an edge's destination."""
        if index.domain is Domain.DST and self.domain is Domain.DST and self.end is None:
            return Symbol(self.value, index.rows)
        if index.domain is Domain.EDGE_TYPE and self.value.domain is Domain.EDGE_TYPE:
            return self
        raise invalid("index", "does not read a computed value", _label(index),
                      f"a value of a {self.domain.value}, which destinations alone can read",
                      "Read tables first, then compute.")  # fmt: skip

    def __repr__(self) -> str:
        return f"a {self.rows.value} value of rows {list(self.shape)}"


class Table(Arithmetic):
    """An argument of a program, whose domain follows from how it is read."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.shape = shape  # of the whole tensor
        self.inputs: dict[Domain, Value] = {}
        self._first = ""

    def __getitem__(self, index: Index) -> Symbol:
        if not isinstance(index, Index):
            raise invalid(self.name, "wrong index", index, "edge, edge.src, edge.dst, edge.node, "
                          "edge.type, or the type of a node")  # fmt: skip
        value = self._read(f"{self.name}[{index.label}]", index.domain)
        return Symbol(value, index.rows, index.end)

    def plain(self) -> Symbol:
        """The table as a parameter."""
        return Symbol(self._read(self.name, Domain.PARAM), Domain.PARAM)

    def _read(self, written: str, domain: Domain) -> Value:
        nodes = {Domain.SRC, Domain.DST}  # the same table, where sources are destinations
        if any(d is not domain and not {d, domain} <= nodes for d in self.inputs):
            raise invalid(self.name, "read in two ways", written, f"only {self._first}",
                          "A table has one row for one thing; pass two tables.")  # fmt: skip
        if domain is not Domain.PARAM and not self.shape:
            raise invalid(self.name, "has no rows", f"shape [] at {written}", "[rows, ...]")
        self._first = self._first or written
        if domain not in self.inputs:
            shape = self.shape if domain is Domain.PARAM else self.shape[1:]
            self.inputs[domain] = ir.input_value(input_name(self.name, domain), domain, shape)
        return self.inputs[domain]

    def __repr__(self) -> str:
        return f"table {self.name} {list(self.shape)}"


Operand: TypeAlias = "Arithmetic | float | int"

_SUFFIX = {
    Domain.PARAM: "", Domain.NODE_TYPE: "[node.type]", Domain.EDGE_TYPE: "[edge.type]",
    Domain.SRC: "[edge.src]", Domain.DST: "[edge.dst]", Domain.EDGE: "[edge]",
}  # fmt: skip


def input_name(argument: str, domain: Domain) -> str:
    """Name of the input that an argument is in a domain; a table may be two of them."""
    return argument + _SUFFIX[domain]


class Edge(Index):
    """The first argument of a program: an edge, and sums over the edges of a destination."""

    def __init__(self) -> None:
        super().__init__("edge", Domain.EDGE, Domain.EDGE)

    #: The nodes of an edge, and the destination for what is computed after aggregation.
    src = NodeIndex("edge.src", Domain.SRC, Domain.EDGE)
    dst = NodeIndex("edge.dst", Domain.DST, Domain.EDGE)
    node = NodeIndex("edge.node", Domain.DST, Domain.DST)
    type = Index("edge.type", Domain.EDGE_TYPE, Domain.EDGE_TYPE)

    def sum(self, value: Operand, within: Index | None = None) -> Symbol:
        """Sum over the edges of each destination; of no edge 0.

        Parameters
        ----------
        value : of edges, or of (destination, type) as ``within`` makes them
        within : ``edge.type``, optional
            One result for each destination and edge type that has an edge.
        """
        return aggregate("sum", value, within)

    def mean(self, value: Operand, within: Index | None = None) -> Symbol:
        """Mean, else as :meth:`sum`."""
        return aggregate("mean", value, within)

    def max(self, value: Operand, within: Index | None = None) -> Symbol:
        """Largest, element by element; of no edge -inf."""
        return aggregate("max", value, within)

    def min(self, value: Operand, within: Index | None = None) -> Symbol:
        """Smallest, element by element; of no edge inf."""
        return aggregate("min", value, within)


def _label(index: object) -> str:
    return index.label if isinstance(index, Index) else repr(index)


# --------------------------------------------------------------------------- combining


def symbol(operand: Operand) -> Symbol:
    """What is computed with: a symbol, a table as a parameter, or a number as a constant."""
    if isinstance(operand, Symbol):
        return operand
    if isinstance(operand, Table):
        return operand.plain()
    if isinstance(operand, (int, float)):
        return Symbol(ir.const(operand), Domain.PARAM)
    raise invalid("operand", "no value of a program", type(operand).__name__,
                  "a table, what was computed from one, or a number")  # fmt: skip


def _meet(domains: Sequence[Domain]) -> Domain:
    """The domain of a combination; pairs only where one of the values is of pairs."""
    found = join(domains)
    pairs = (Domain.SRC_PAIR, Domain.DST_PAIR)
    return Domain.EDGE if found in pairs and found not in domains else found


def meeting(*symbols: Symbol) -> tuple[Domain, Domain, Domain | None]:
    """Domain, rows and end of a combination of symbols."""
    rows = _meet([s.rows for s in symbols])
    ends = {s.end for s in symbols if s.value.domain is not Domain.PARAM}
    if len(ends) == 1 and None not in ends:
        return Domain.NODE_TYPE, rows, ends.pop()
    return _meet([s.domain for s in symbols]), rows, None


def together(symbols: Sequence[Symbol], operator: Callable[..., Value]) -> Symbol:
    """Apply an operator to symbols, read in the coarsest domain that has them all."""
    domain, rows, end = meeting(*symbols)
    if end is None:
        values = [s.at(domain) for s in symbols]
    else:
        values = [ir.gather(s.value, domain) for s in symbols]
    return Symbol(operator(*values), rows, end)


def combine(op: str, a: Operand, b: Operand) -> Symbol:
    """An operator of ``values.BINARY``."""
    return together([symbol(a), symbol(b)], lambda x, y: ir.binary(op, x, y))


def apply_row(x: Symbol, operator: Callable[[Value], Value]) -> Symbol:
    """An operator on one value."""
    return Symbol(operator(x.value), x.rows, x.end)


def typed_linear(x: Symbol, weight: Symbol) -> Symbol:
    """Product of each row with its weight, which is not read row by row."""
    types = weight.value.domain
    domain, rows, end = meeting(x, weight)
    if types not in ir.TYPES or not reads(domain, types):
        raise invalid("weight", "does not fit the rows", f"{weight!r} for {x!r}",
                      "a parameter, a table read by edge.type, or by the type of a node with rows "
                      "of that node alone")  # fmt: skip
    value = x.at(domain) if end is None else ir.gather(x.value, domain)
    return Symbol(ir.linear(value, weight.value), rows, end)


def of_edges(operand: Operand) -> Value:
    """The value read by every edge."""
    x = symbol(operand)
    if x.rows is Domain.DST:
        raise invalid("value", "aggregated already", repr(x), "a value of edges",
                      "Read it by edge.dst to have it on every edge.")  # fmt: skip
    return x.at(Domain.EDGE)


def group_of(within: Index | None) -> Domain:
    """The domain that edges are grouped by."""
    if within is None:
        return Domain.DST
    if isinstance(within, Index) and within.domain is Domain.EDGE_TYPE:
        return Domain.DST_PAIR
    raise invalid("within", "not a type of edges", _label(within), "edge.type or None")


def aggregate(how: str, operand: Operand, within: Index | None) -> Symbol:
    """Reduce over the edges of a destination, or its (destination, type) pairs."""
    x, to = symbol(operand), group_of(within)
    if x.rows is Domain.DST_PAIR and within is None:
        return Symbol(ir.reduce(how, x.at(Domain.DST_PAIR), to), to)
    return Symbol(ir.reduce(how, of_edges(x), to), to)


# --------------------------------------------------------------------------- the whole function


@dataclass(frozen=True)
class Traced:
    """A traced function.

    Attributes
    ----------
    program : Program
    arguments : tuple of str
        Which argument of the function each input is.
    single : bool
        The function returned one value, not a sequence.
    """

    program: Program
    arguments: tuple[str, ...]
    single: bool

    @property
    def indexed(self) -> frozenset[str]:
        """Arguments that have rows."""
        inputs = zip(self.arguments, self.program.inputs, strict=True)
        return frozenset(a for a, v in inputs if v.domain is not Domain.PARAM)


def trace(
    function: Callable[..., Any], shapes: Mapping[str, Shape], constants: Mapping[str, Hashable]
) -> Traced:
    """Call a function with symbols.

    Parameters
    ----------
    function : callable (edge, **arguments)
    shapes : mapping of str to tuple of int
        Of the tensors; of the rows of one that is indexed, the first number does not matter.
    constants : mapping of str to anything that hashes
        Passed as they are.
    """
    tables = {name: Table(name, tuple(shape)) for name, shape in shapes.items()}
    returned = function(Edge(), **tables, **constants)
    single = not isinstance(returned, (tuple, list))
    outputs = []
    for result in [returned] if single else returned:
        found = symbol(result)
        outputs.append(found.value if found.rows is found.value.domain else found.at(found.rows))
    inputs = [(t.name, t.inputs[d]) for t in tables.values() for d in Domain if d in t.inputs]
    arguments = tuple(name for name, _ in inputs)
    return Traced(Program(tuple(v for _, v in inputs), tuple(outputs)), arguments, single)

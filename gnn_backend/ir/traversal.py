"""What a traversal kernel does, apart from how: the meeting point of lowering and code generation.

A traversal goes over *elements* (edges, or pairs) in groups that belong to one *row* each (a
destination, a source, a pair, a type), evaluates straight-line code on every element and reduces
the results into the row. A *map* has elements alone and writes a row for each.

Everything in a kernel has one shape [heads, dim] or a smaller one, [heads, 1], [1, dim] or [1, 1],
which broadcasts. A value of the program with rows [] is [1, 1] here; [F] is [1, F] in a kernel
whose values all have one dimension or none, and [F, 1] beside rows [H, D].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from gnn_backend.ir.domains import Domain, reads


@dataclass(frozen=True)
class Table:
    """Stored rows that a kernel reads or writes.

    Attributes
    ----------
    domain : Domain
        Which row is read follows from it: its own for the row or the element, else by an index of
        the row where ``rows`` reads the domain, else by an index of the element.
    heads, dim : int
        1, or those of the kernel.
    """

    domain: Domain
    heads: int
    dim: int


@dataclass(frozen=True)
class Step:
    """One register of the straight-line code; its number is its place in ``Traversal.code``.

    Attributes
    ----------
    op : str
        ``load`` (of input ``table``), ``const`` (``value``), an operator of ``values.UNARY`` or
        ``values.BINARY``, or ``dot``: the sum of products over ``dim``.
    args : tuple of int
        Registers.
    heads, dim : int
        Of the result.
    per_row : bool
        The same for all elements of a row: computed before them.
    table : int
    value : float
        Of ``const``, and the slope of ``leaky_relu`` and ``slope``.
    """

    op: str
    args: tuple[int, ...]
    heads: int
    dim: int
    per_row: bool = False
    table: int = -1
    value: float = 0.0


@dataclass(frozen=True)
class Reduction:
    """What of the elements is left in a row.

    Attributes
    ----------
    how : str
        ``sum``, ``max``, ``min``, ``lse`` (natural logarithm of the sum of exponentials) or
        ``softmax``: the sum of ``value`` weighted by the softmax of ``logit``.
        Of no element: 0, -inf, inf, -inf, 0. NaN spreads. A row whose logits are all -inf has NaN.
    value : int
        Register; of ``lse`` the logit.
    table : int
        Output, of the traversal's row domain.
    logit : int
        Register of ``softmax``, [heads or 1, 1]; reductions of one logit share its statistics.
    """

    how: str
    value: int
    table: int
    logit: int = -1


@dataclass(frozen=True)
class Store:
    """Write a register of every element; ``table``: output, of the element domain."""

    value: int
    table: int


@dataclass(frozen=True)
class Traversal:
    """A kernel.

    Attributes
    ----------
    rows : Domain or None
        None: a map.
    elements : Domain
        It reads ``rows``.
    heads, dim : int
    inputs, outputs : tuple of Table
    code : tuple of Step
        Registers are used after they are made.
    reductions : tuple of Reduction
    stores : tuple of Store
    """

    rows: Domain | None
    elements: Domain
    heads: int
    dim: int
    inputs: tuple[Table, ...]
    outputs: tuple[Table, ...]
    code: tuple[Step, ...]
    reductions: tuple[Reduction, ...] = ()
    stores: tuple[Store, ...] = field(default=())

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Plans are looked up by traversals in every call, and these have many parts."""
        return hash((self.rows, self.elements, self.heads, self.dim, self.code, self.reductions))

    def by_row(self, table: Table) -> bool:
        """Whether a table is read by the row, not by the element."""
        return self.rows is not None and reads(self.rows, table.domain)

    def indices(self) -> tuple[Domain, ...]:
        """Domains whose index the kernel reads for every element, in the order of the enumeration.

        The element's own, where an input or output has it, is among them.
        """
        used = {t.domain for t in self.inputs if not self.by_row(t)}
        used |= {self.elements for _ in self.stores}
        return tuple(d for d in Domain if d in used and d is not Domain.PARAM)

    def row_indices(self) -> tuple[Domain, ...]:
        """Domains whose index it reads for every row; the row's own is its number."""
        used = {t.domain for t in self.inputs if self.by_row(t)} - {self.rows, Domain.PARAM}
        return tuple(d for d in Domain if d in used)

    def listing(self) -> list[str]:
        """The program, a line a value: the heading of generated code."""
        by = "" if self.rows is None else f" by {self.rows.value}"
        lines = [f"{self.elements.value}{by}, [{self.heads}, {self.dim}]"]
        for number, step in enumerate(self.code):
            of = " of the row" if step.per_row and step.op != "const" else ""
            lines.append(
                f"{self._name(number)} = {self._listed(step)} [{step.heads}, {step.dim}]{of}"
            )
        for reduction in self.reductions:
            logit = f", {self._name(reduction.logit)}" if reduction.how == "softmax" else ""
            value = f"{reduction.how}({self._name(reduction.value)}{logit})"
            lines.append(f"out{reduction.table}[row] = {value}")
        lines += [f"out{s.table}[element] = {self._name(s.value)}" for s in self.stores]
        return lines

    def _name(self, number: int) -> str:
        return f"{'x' if self.code[number].dim > 1 else 's'}{number}"

    def _listed(self, step: Step) -> str:
        if step.op == "load":
            return f"in{step.table}[{self.inputs[step.table].domain.value}]"
        if step.op == "const":
            return repr(step.value)
        args = [self._name(a) for a in step.args]
        if step.op in ("leaky_relu", "slope"):
            args.append(repr(step.value))
        return f"{step.op}({', '.join(args)})"

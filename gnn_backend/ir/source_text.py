"""Writing source text by lines, in blocks; what is alike in all generated languages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gnn_backend.ir.domains import Domain
from gnn_backend.ir.traversal import Table, Traversal

_INDENT = "    "


class SourceText:
    """Lines of a text, each indented by the blocks that it stands in.

    Attributes
    ----------
    lines : list of str
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def add(self, line: str = "") -> None:
        """Write a line."""
        self.lines.append(_INDENT * self._depth + line if line else "")

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Write what follows one level deeper."""
        self._depth += 1
        yield
        self._depth -= 1


def arguments(fields: Sequence[str], traversal: Traversal) -> list[tuple[str, Domain | int | None]]:
    """Every field of the arguments of a kernel, 8 bytes each, in order.

    Parameters
    ----------
    fields : sequence of str
        Those before indices and tables, whatever the traversal.
    traversal : Traversal

    Returns
    -------
    list of (str, Domain or int or None)
        Name, and what it is of: the index of a domain, or the number of a table.
    """
    found: list[tuple[str, Domain | int | None]] = [(name, None) for name in fields]
    found += [(f"by_{d.name.lower()}", d) for d in traversal.indices()]
    found += [(f"row_by_{d.name.lower()}", d) for d in traversal.row_indices()]
    found += [(f"in{n}", n) for n in range(len(traversal.inputs))]
    found += [(f"out{n}", n) for n in range(len(traversal.outputs))]
    return found


def row_of(traversal: Traversal, table: Table, of_row: str, of_element: str) -> str:
    """The variable that holds which row of a table is read.

    Parameters
    ----------
    traversal : Traversal
    table : Table
    of_row, of_element : str
        Names of the row's and the element's indices, with ``{}`` for the domain's name.
    """
    if table.domain is Domain.PARAM:
        return "0"
    name = table.domain.name.lower()
    if traversal.by_row(table):
        return "row" if table.domain is traversal.rows else of_row.format(name)
    return of_element.format(name)

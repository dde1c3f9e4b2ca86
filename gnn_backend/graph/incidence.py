"""Which rows of a finer domain belong to each row of a coarser one, as kernels go over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gnn_backend.graph.splits import Splits
from gnn_backend.ir.domains import Domain


@dataclass(frozen=True)
class Segments:
    """Rows grouped by type.

    Attributes
    ----------
    ptr : int32 [T + 1]
        Where each type starts in the sorted list, and the last one ends.
    order : int32 [M] or None
        Place in the sorted list -> row; None: the rows are sorted as they stand.
    lengths : tuple of int
        Rows of each type.
    """

    ptr: Tensor
    order: Tensor | None
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Incidence:
    """Elements grouped by row.

    Attributes
    ----------
    rows, elements : Domain
    indptr : int32 [rows + 1]
        Places of the elements of each row.
    order : int32 [elements] or None
        Place -> element; None: the element of the place's number.
    num_elements : int
    """

    rows: Domain
    elements: Domain
    indptr: Tensor
    order: Tensor | None
    num_elements: int
    _index: Callable[[Domain], Tensor | None]
    _splits: Callable[[int], Splits]

    @property
    def num_rows(self) -> int:
        return self.indptr.numel() - 1

    def index(self, domain: Domain) -> Tensor | None:
        """Row of ``domain`` of the element at each place, int32 [elements]; None: the place."""
        return self._index(domain)

    def splits(self, chunk: int) -> Splits:
        """Tasks of at most ``chunk`` elements of one row (see :class:`Splits`), cached."""
        return self._splits(chunk)

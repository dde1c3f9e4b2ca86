"""Edges grouped by one end and cut into tasks: what a launch over them needs to point at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import CSR, Graph, Splits
from gnn_backend.graph.build import expand_rows, index_dtype
from gnn_backend.graph.graph import Direction
from gnn_backend.graph.splits import bound_splits, count_splits, make_splits
from gnn_backend.runtime.sparse import model

#: The family of operators whose task length is not chosen by measurement.
OPERATORS = "operators"


@dataclass(frozen=True)
class Rows:
    """Rows of a CSR, cut into tasks.

    Attributes
    ----------
    csr : CSR
        ``indices`` may be empty where no operand is read at the other end.
    splits : Splits
    num_rows, num_edges : int
    padding : int
        Rows at the end that are nobody's.
    row_of_edge : int32 [num_edges], optional
        The row of every edge in the caller's edge order, where it is known already.
    """

    csr: CSR
    splits: Splits
    num_rows: int
    num_edges: int
    padding: int = 0
    row_of_edge: Tensor | None = None

    @cached_property
    def edge_ids(self) -> int:
        """Address of the edge ids, 0 if edges are numbered by their place."""
        ids = self.csr.edge_ids
        return 0 if ids is None else ids.data_ptr()

    @cached_property
    def wide(self) -> bool:
        """Whether edge ids are 64-bit."""
        return self.csr.indptr.dtype == torch.int64

    @property
    def edge_dtype(self) -> torch.dtype:
        """Of edge ids, in and out."""
        return torch.int64 if self.wide else torch.int32

    @cached_property
    def heavy_degrees(self) -> Tensor:
        """Edges of each split row, float64."""
        degrees = self.csr.indptr.diff()[self.splits.heavy_rows.long()]
        return degrees.double()

    @cached_property
    def num_heavy(self) -> int:
        return self.splits.heavy_rows.numel()

    @cached_property
    def edge_rows(self) -> Tensor:
        """The row of every edge in the caller's edge order, int32 [num_edges]."""
        if self.row_of_edge is not None:
            return self.row_of_edge
        rows = expand_rows(self.csr.indptr, self.num_edges)
        ids = self.csr.edge_ids
        return rows if ids is None else torch.empty_like(rows).index_copy_(0, ids.long(), rows)


def chunk_of(num_edges: int, row_bytes: int, family: str = OPERATORS, itemsize: int = 4) -> int:
    """Edges a task for operands of so many bytes a row; see :func:`model.chunk`."""
    return model.chunk(family, num_edges, row_bytes, itemsize)


def rows_of(graph: Graph, direction: Direction, row_bytes: int, chunk: int | None = None) -> Rows:
    """The rows of one direction for operands of so many bytes a row, from the graph's cache.

    ``chunk``: edges a task, where that has been chosen.
    """
    chunk = chunk or chunk_of(graph.num_edges, row_bytes)
    key = ("rows", direction, chunk)
    rows = graph.plans.get(key)
    if rows is None:
        count = graph.num_dst if direction == "dst" else graph.num_src
        splits = graph.splits(direction, chunk)
        rows = graph.plans[key] = Rows(graph.csr(direction), splits, count, graph.num_edges)
    return rows


def rows_between(
    offsets: Tensor, num_edges: int, row_bytes: int, edge_ids: Tensor | None = None
) -> Rows:
    """Rows that hold the entries ``offsets[i] .. offsets[i + 1]`` of a list; nothing is cached.

    Sizing the tasks takes a device-to-host copy.

    Parameters
    ----------
    offsets : int32 or int64 [rows + 1]
        Ascending.
    num_edges : int
        Length of the list.
    row_bytes : int
        Bytes of an entry.
    edge_ids : int32 or int64 [num_edges], optional
        What stands at each place of the list; by default the place itself.

    Raises
    ------
    InvalidArgument
        ``offsets`` are not ascending, leave the list, or, with ``edge_ids``, leave out a part.
    """
    indptr = offsets.to(index_dtype(num_edges)).contiguous()
    chunk = chunk_of(num_edges, row_bytes)
    degrees = offsets.diff()
    bounds = torch.stack([offsets[0].long(), offsets[-1].long()])
    least = degrees.min().long()[None] if degrees.numel() else bounds.new_zeros(1)
    sizes = count_splits(indptr.diff(), (chunk,))[0]
    first, last, smallest, *counts = torch.cat([bounds, least, sizes]).tolist()
    partial = edge_ids is not None and (first, last) != (0, num_edges)
    if first < 0 or last > num_edges or smallest < 0 or partial:
        raise invalid("offsets", "not the bounds of segments",
                      f"first {first}, last {last}, smallest step {smallest}",
                      f"ascending, within 0 to {num_edges}")  # fmt: skip
    if edge_ids is not None:
        edge_ids = edge_ids.to(indptr.dtype).contiguous()
    csr = CSR(indptr, indptr.new_empty(0, dtype=torch.int32), edge_ids)
    return Rows(csr, make_splits(indptr, chunk, *counts), degrees.numel(), num_edges)


def bounded_rows(
    indptr: Tensor, num_edges: int, row_bytes: int, edge_ids: Tensor | None = None,
    row_of_edge: Tensor | None = None,
) -> Rows:  # fmt: skip
    """Rows of a list as of :func:`rows_between`, without waiting for the device.

    Nothing is checked. The number of tasks is the largest that rows with so many edges can have;
    those too many belong to a row of padding.

    Parameters
    ----------
    indptr : int32 or int64 [rows + 1], of the dtype that ``index_dtype(num_edges)`` gives
        Ascending, within 0 to ``num_edges``.
    num_edges, row_bytes : int
    edge_ids : Tensor [num_edges], optional
        Of the dtype of ``indptr``.
    row_of_edge : int32 [num_edges], optional
    """
    chunk = chunk_of(num_edges, row_bytes)
    num_rows = indptr.numel() - 1
    indptr = torch.cat([indptr, indptr[-1:]])
    sizes = bound_splits(num_rows, num_edges, chunk)
    csr = CSR(indptr, indptr.new_empty(0, dtype=torch.int32), edge_ids)
    splits = make_splits(indptr, chunk, *sizes, padded=True)
    return Rows(csr, splits, num_rows + 1, num_edges, 1, row_of_edge)

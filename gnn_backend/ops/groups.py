"""Entries of a list grouped by an index: built without waiting for the device, and kept.

What :mod:`gnn_backend.ops.segment` computes for offsets that are used once, this computes for an
index that is used again: sorted once, with the tasks of every width it was asked for.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from gnn_backend.graph.build import index_dtype
from gnn_backend.ops.attention import kernel_ready
from gnn_backend.ops.operands import ready, row_bytes
from gnn_backend.ops.segment import reduce_rows
from gnn_backend.runtime.launch import sparse_engine
from gnn_backend.runtime.sparse.edge_softmax import Plan as SoftmaxPlan
from gnn_backend.runtime.sparse.rows import Rows, bounded_rows, chunk_of


class Groups:
    """Which group every entry of a list belongs to. Immutable; holds no tensor of the caller's.

    Attributes
    ----------
    indptr : int32 or int64 [num_groups + 1]
        Bounds of the groups in the sorted list.
    order : int32 or int64 [num_entries] or None
        Place in the sorted list -> entry, stable; None where entries are sorted as they stand.
    num_groups, num_entries : int
    """

    def __init__(
        self, indptr: Tensor, num_entries: int, order: Tensor | None, group_of: Tensor | None
    ) -> None:
        self.indptr, self.order, self._group_of = indptr, order, group_of
        self.num_groups, self.num_entries = indptr.numel() - 1, num_entries
        self._rows: dict[int, Rows] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_index(cls, index: Tensor, num_groups: int, *, ascending: bool) -> Groups:
        """Group entries by an index.

        Parameters
        ----------
        index : int32 or int64 [N]
            Within 0 to ``num_groups`` - 1, which the device checks when it gets there.
        num_groups : int
        ascending : bool
            Whether the index is known to be sorted; otherwise it is sorted here.
        """
        dtype = index_dtype(index.numel())
        torch._assert_async(
            ((index >= 0) & (index < num_groups)).all(),
            f"index out of range, expected values from 0 to {num_groups - 1}",
        )
        keys, order = index, None
        group_of = index.to(torch.int32, copy=True)
        if not ascending:
            keys, order = torch.sort(group_of, stable=True)
            order = order.to(dtype)
        bounds = torch.arange(num_groups + 1, device=index.device, dtype=keys.dtype)
        indptr = torch.searchsorted(keys.contiguous(), bounds, out_int32=dtype == torch.int32)
        return cls(indptr, index.numel(), order, group_of)

    @classmethod
    def from_offsets(cls, offsets: Tensor, num_entries: int) -> Groups:
        """Group consecutive entries.

        Parameters
        ----------
        offsets : int32 or int64 [groups + 1]
            Ascending, within 0 to ``num_entries``; what is not is cut off, unnoticed.
        num_entries : int
        """
        # Memory is safe for any offsets, and nothing waits for the device.
        safe = offsets.clamp(0, num_entries).cummax(0).values
        return cls(safe.to(index_dtype(num_entries)), num_entries, None, None)

    def counts(self) -> Tensor:
        """Entries of each group [num_groups], in the dtype of ``indptr``."""
        return self.indptr.diff()

    def group_of(self) -> Tensor:
        """The group of each entry, int32 [num_entries]; the last one's for what is in none."""
        if self._group_of is None:
            places = torch.arange(
                self.num_entries, device=self.indptr.device, dtype=self.indptr.dtype
            )
            found = torch.searchsorted(self.indptr, places, right=True) - 1
            self._group_of = (found % self.num_groups).int()
        return self._group_of

    def rows(self, size: int) -> Rows:
        """The groups cut into tasks for entries of so many bytes."""
        chunk = chunk_of(self.num_entries, size)
        with self._lock:
            if chunk not in self._rows:
                self._rows[chunk] = bounded_rows(
                    self.indptr, self.num_entries, size, self.order, self._group_of
                )
            return self._rows[chunk]

    def reduce(self, op: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Reduce each group's entries, on CUDA or the emulator; without autograd.

        Parameters
        ----------
        op : {"sum", "mean", "max", "min"}
        x : Tensor [num_entries, *]

        Returns
        -------
        out : Tensor [num_groups, width]
            As of :func:`gnn_backend.ops.segment.segment_reduce`.
        arg : Tensor [num_groups, width] or None
            Of max and min the entry that won, or -1.

        Raises
        ------
        Unsupported
            No kernel for this device or dtype.
        """
        result = reduce_rows(self.rows(row_bytes(x)), op, x)
        return result.out, result.arg_edge

    def softmax(self, x: Tensor) -> Tensor:
        """Softmax over each group's entries; a column [num_entries, width] on its own.

        Raises
        ------
        Unsupported
            No kernel for this device or dtype.
        """
        return self._softmax(x, None)

    def softmax_backward(self, out: Tensor, grad: Tensor) -> Tensor:
        """Gradient of :meth:`softmax` towards its argument, given what it returned."""
        return self._softmax(out, grad)

    def _softmax(self, value: Tensor, grad: Tensor | None) -> Tensor:
        engine: Any = sparse_engine(value.device, value.dtype)
        rows = self.rows(row_bytes(value))
        plan = SoftmaxPlan(rows, value.dtype, value.shape[1], grad is not None)
        out: Tensor = plan.run(engine, kernel_ready(value), ready(grad))
        return out

    def nbytes(self) -> int:
        """Bytes held."""
        parts = [self.indptr, self.order, self._group_of]
        held = sum(part.nbytes for part in parts if part is not None)
        return held + sum(
            rows.splits.nbytes() + rows.csr.indptr.nbytes for rows in self._rows.values()
        )

"""Compressed rows of one direction of a graph, and those of the other direction made of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gnn_backend.graph.build import expand_rows, group_cuda


class CSR:
    """Compressed rows of one direction.

    Attributes
    ----------
    indptr : int32 [rows + 1], int64 if the graph has 2^31 edges or more
    indices : int32 [E]
        The other endpoint: sources in ``by_dst``, destinations in ``by_src``.
    edge_ids : integer [E] or None
        CSR position -> the caller's edge, stable within a row; None means identity.
    rows : int32 [rows] or None
        Which row each is, where they are laid out in another order; None means identity.
    """

    __slots__ = ("_edge_ids", "indices", "indptr", "rows")

    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        edge_ids: Tensor | Callable[[], Tensor] | None,
        rows: Tensor | None = None,
    ) -> None:
        self.indptr = indptr
        self.indices = indices
        self._edge_ids = edge_ids
        self.rows = rows

    @property
    def edge_ids(self) -> Tensor | None:
        if callable(self._edge_ids):
            self._edge_ids = self._edge_ids()
        return self._edge_ids

    def nbytes(self) -> int:
        held = [self.indptr, self.indices]
        if isinstance(self._edge_ids, Tensor):
            held.append(self._edge_ids)
        return sum(t.numel() * t.element_size() for t in held)


def transposed(forward: CSR, num_src: int) -> CSR:
    """The rows by source of rows by destination, in their order.

    Parameters
    ----------
    forward : CSR
        By destination.
    num_src : int
    """
    rows = expand_rows(forward.indptr, forward.indices.numel())
    if forward.indices.device.type == "cuda":
        indptr, indices, _ = group_cuda(forward.indices, rows, num_src)
    else:
        from gnn_backend.graph.counting_sort import group_cpu

        indptr, indices, _, _ = group_cpu(forward.indices, rows, num_src)

    def edge_ids() -> Tensor:
        # Only edge features need it, so it is sorted again on demand, not kept.
        keys = forward.indices
        if keys.device.type == "cuda":
            order = group_cuda(keys, keys, num_src)[2]
        else:
            from gnn_backend.graph.counting_sort import group_cpu

            order = group_cpu(keys, keys, num_src)[2]
        return order if forward.edge_ids is None else forward.edge_ids[order.long()]

    return CSR(indptr, indices, edge_ids)


def sorted_by_source(src: Tensor, dst: Tensor, num_src: int) -> CSR:
    """The rows by source of the ends [E] of edges, in the order of the edges."""
    if src.device.type == "cuda":
        return CSR(*group_cuda(src, dst, num_src))
    from gnn_backend.graph.counting_sort import group_cpu

    indptr, indices, order, _ = group_cpu(src, dst, num_src)
    return CSR(indptr, indices, order)


def ordered_rows(csr: CSR, order: Tensor) -> CSR:
    """The rows of a CSR laid out in another order; within a row nothing moves.

    Parameters
    ----------
    csr : CSR
    order : int32 [rows]
        Place -> row. The result keeps it, without a copy.
    """
    degree = csr.indptr.diff()[order.long()]
    indptr = torch.nn.functional.pad(degree.cumsum(0, dtype=csr.indptr.dtype), (1, 0))

    def places() -> Tensor:
        shift = csr.indptr[:-1][order.long()] - indptr[:-1]
        at = torch.arange(csr.indices.numel(), dtype=indptr.dtype, device=indptr.device)
        return at.add_(shift[expand_rows(indptr, at.numel()).long()])

    def edge_ids() -> Tensor:
        found = places()
        return found if csr.edge_ids is None else csr.edge_ids[found.long()]

    return CSR(indptr, csr.indices[places().long()], edge_ids, order)

"""`Graph`: the immutable descriptor that every operator takes.

Edges run source -> destination; aggregation is at the destination. Everything past the first
CSR is built on first use and kept with the object, which frees it when it dies.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Literal

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph.block_sparse import (
    BlockSparse,
    BlockStats,
    build_block_sparse,
    edge_places,
    sample_stats,
)
from gnn_backend.graph.build import group_cuda, index_dtype
from gnn_backend.graph.checks import (
    check_ids,
    check_integer,
    cuda_counts,
    node_count,
    out_of_range,
)
from gnn_backend.graph.csr import CSR, ordered_rows, sorted_by_source, transposed
from gnn_backend.graph.order import Order
from gnn_backend.graph.splits import MAX_CHUNK, Splits, count_splits, make_splits
from gnn_backend.graph.stats import DegreeStats, degree_stats

Direction = Literal["dst", "src"]


class Graph:
    """An immutable graph: CSR by destination and by source, row splits, degree statistics.

    Build one with :meth:`from_edge_index` or :meth:`from_csr`. It is safe to share between
    threads and to pickle (lazily built parts are left out).

    Attributes
    ----------
    num_src, num_dst, num_edges : int
    device : torch.device
    by_dst, by_src : CSR
        ``by_src`` (the transposed adjacency) is built at first use; its rows are in the order of
        ``by_dst``, or of the edges in a graph made by :meth:`from_edges`.
    order : Order or None
        The order in which kernels go over the rows, of a graph made by :meth:`reorder`.
    """

    def __init__(
        self,
        num_src: int,
        num_dst: int,
        by_dst: CSR,
        counts: dict[Any, Any],
        order: Order | None = None,
    ) -> None:
        self._num_src = num_src
        self._num_dst = num_dst
        self._by_dst = by_dst
        self._by_src: CSR | None = None
        self._counts = counts
        self._splits: dict[tuple[Direction, int], Splits] = {}
        self._stats: dict[Direction, DegreeStats] = {}
        self._blocks: dict[Direction, BlockSparse] = {}
        self._block_stats: dict[Direction, BlockStats] = {}
        self._block_places: dict[Direction, Tensor] = {}
        self._places: dict[Direction, Tensor | None] = {}
        self.plans: dict[Any, Any] = {}  # launch plans that the runtime keeps with the graph
        self._order = order
        self._reordered: dict[tuple[str, bool], Graph] = {}
        self._ordered_rows: dict[Direction, CSR] = {}
        self._ends: tuple[Tensor, Tensor] | None = None
        self._reversed: Graph | weakref.ref[Graph] | None = None
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ construction

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, num_src: int | None = None, num_dst: int | None = None
    ) -> Graph:
        """Build from a COO edge list.

        Parameters
        ----------
        edge_index : int32 or int64 [2, E]
            Row 0 sources, row 1 destinations.
        num_src, num_dst : int, optional
            Node counts; by default one more than the largest id (costs a device-to-host copy).

        Raises
        ------
        InvalidArgument
            Wrong shape or dtype, or an id outside its range.
        """
        check_integer("edge_index", edge_index)
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            raise invalid("edge_index", "wrong shape", tuple(edge_index.shape), "[2, E]")
        src, dst = edge_index.detach().as_subclass(Tensor)
        num_src = node_count("num_src", num_src, src)
        num_dst = node_count("num_dst", num_dst, dst)
        return cls._from_ends(src, dst, num_src, num_dst)

    @classmethod
    def from_edges(cls, src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> Graph:
        """Build from the two ends of the edges, and keep them without a copy.

        The rows of ``by_src`` are then made of the kept ends, so that they are in the order of the
        edges, as those of ``by_dst`` are. The ends must not be written to afterwards.

        Parameters
        ----------
        src, dst : int32 or int64 [E]
        num_src, num_dst : int

        Raises
        ------
        InvalidArgument
            Wrong shapes, dtypes or devices, or an id outside its range.
        """
        for name, ids in (("src", src), ("dst", dst)):
            check_integer(name, ids)
            if ids.dim() != 1:
                raise invalid(name, "wrong shape", tuple(ids.shape), "[E]")
        if dst.shape != src.shape or dst.device != src.device:
            got = f"{tuple(dst.shape)} on {dst.device}"
            raise invalid("dst", "unlike src", got, f"{tuple(src.shape)} on {src.device}")
        num_src = node_count("num_src", num_src, src)
        num_dst = node_count("num_dst", num_dst, dst)
        graph = cls._from_ends(src.detach(), dst.detach(), num_src, num_dst)
        graph._ends = (src.detach(), dst.detach())
        return graph

    @classmethod
    def _from_ends(cls, src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> Graph:
        if src.device.type == "cuda":
            indptr, indices, order = group_cuda(dst, src, num_dst)
            counts = cuda_counts(indptr, src, dst, num_src, num_dst)
        else:
            from gnn_backend.graph.counting_sort import group_cpu

            indptr, indices, order, bad = group_cpu(dst, src, num_dst)
            if bad >= 0:
                raise out_of_range("edge_index", "destination", int(dst[bad]), bad, num_dst)
            check_ids("edge_index", src, num_src)
            counts = {}
        return cls(num_src, num_dst, CSR(indptr, indices, order), counts)

    @classmethod
    def from_csr(
        cls,
        indptr: Tensor,
        indices: Tensor,
        num_src: int | None = None,
        edge_ids: Tensor | None = None,
    ) -> Graph:
        """Build from in-edges compressed by destination.

        Parameters
        ----------
        indptr : int32 or int64 [num_dst + 1]
        indices : int32 or int64 [E]
            Source of each edge.
        num_src : int, optional
            By default one more than the largest source.
        edge_ids : int32 or int64 [E], optional
            CSR position -> the caller's edge; None means identity.

        Raises
        ------
        InvalidArgument
            Wrong shapes, dtypes or devices, a decreasing ``indptr``, or an id out of range.
        """
        for name, tensor in (("indptr", indptr), ("indices", indices), ("edge_ids", edge_ids)):
            if tensor is None:
                continue
            check_integer(name, tensor)
            if tensor.dim() != 1:
                raise invalid(name, "wrong shape", tuple(tensor.shape), "one dimension")
            if tensor.device != indices.device:
                raise invalid(name, "on another device", tensor.device, indices.device)
        if indptr.numel() == 0:
            raise invalid("indptr", "empty", 0, "num_dst + 1 values")
        if edge_ids is not None and edge_ids.numel() != indices.numel():
            raise invalid("edge_ids", "wrong length", edge_ids.numel(), indices.numel())
        num_dst, num_edges = indptr.numel() - 1, indices.numel()
        num_src = node_count("num_src", num_src, indices)
        ends = torch.stack(  # of the caller's own values: a narrower dtype could wrap around
            [indptr[0].long(), indptr[-1].long(), indptr.diff().min().long()]
            if num_dst
            else [indptr[0].long(), indptr[-1].long(), indptr[0].long()]
        )
        first, last, smallest = ends.tolist()
        if first != 0 or last != num_edges or smallest < 0:
            raise invalid(
                "indptr",
                "not the bounds of the rows",
                f"first {first}, last {last}, smallest step {smallest}",
                f"0 first, {num_edges} (len(indices)) last, ascending",
            )
        check_ids("indices", indices, num_src)
        dtype = index_dtype(num_edges)
        ids = None if edge_ids is None else edge_ids.to(dtype).contiguous()
        csr = CSR(indptr.to(dtype).contiguous(), indices.int().contiguous(), ids)
        return cls(num_src, num_dst, csr, {})

    def __reduce__(self) -> Any:
        csr = self._by_dst
        parts = csr.indptr, csr.indices, self._num_src, csr.edge_ids
        return (Graph.from_csr, parts) if self._order is None else (_ordered, (self._order, *parts))

    # ------------------------------------------------------------------ structure

    @property
    def num_src(self) -> int:
        return self._num_src

    @property
    def num_dst(self) -> int:
        return self._num_dst

    @property
    def num_edges(self) -> int:
        return self._by_dst.indices.numel()

    @property
    def device(self) -> torch.device:
        return self._by_dst.indices.device

    @property
    def by_dst(self) -> CSR:
        return self._by_dst

    @property
    def by_src(self) -> CSR:
        csr = self._by_src
        if csr is None:
            with self._lock:
                csr = self._by_src
                if csr is None:
                    csr = self._by_src = self._transposed()
        return csr

    def csr(self, direction: Direction) -> CSR:
        """``by_dst`` or ``by_src``."""
        return self.by_dst if direction == "dst" else self.by_src

    def reversed(self) -> Graph:
        """The graph with every edge turned round; edges keep their ids.

        Both share their CSRs, and each finds the other again: the reversed graph lives as long as
        this one, and reversing it gives this one back while it lives.
        """
        by_src = self.by_src
        with self._lock:
            found = self._reversed() if isinstance(self._reversed, weakref.ref) else self._reversed
            if found is None:
                order = None if self._order is None else self._order.reversed()
                found = Graph(self._num_dst, self._num_src, by_src, {}, order)
                found._by_src = self._by_dst
                for (direction, chunk), sizes in self._counts.items():
                    found._counts["src" if direction == "dst" else "dst", chunk] = sizes
                found._reversed = weakref.ref(self)
                self._reversed = found
        return found

    @property
    def order(self) -> Order | None:
        return self._order

    def reorder(self, method: str, *, bipartite: bool | None = None) -> Graph:
        """The same graph with its rows gone over in another order, for the caches' sake; cached.

        Nodes and edges keep their numbers, tables and results their rows, random numbers their
        edges, and neighbours their order within a row. Kernels take the rows, by destination and by
        source, in the order found, so that those which share neighbours are worked on at the same
        time. See ``docs/reordering.md``.

        Parameters
        ----------
        method : {"natural", "degree", "rcm", "community"}
            By number; by degree, largest first; reverse Cuthill-McKee (SciPy, on the CPU); or by
            communities (see :mod:`gnn_backend.graph.communities`).
        bipartite : bool, optional
            Whether sources and destinations are different nodes. By default they are if their
            numbers differ.

        Returns
        -------
        Graph
            It shares both CSRs with this one.

        Raises
        ------
        InvalidArgument
            An unknown method, or ``bipartite=False`` where the numbers of nodes differ.
        ImportError
            ``rcm`` without SciPy.
        """
        from gnn_backend.graph.reorder import make_order

        apart = self.num_src != self.num_dst if bipartite is None else bool(bipartite)
        key, order = (method, apart), self._order
        if order is not None and key == (order.method, order.bipartite):
            return self
        with self._lock:
            found = self._reordered.get(key)
            if found is None:
                order, by_src = make_order(self, *key), self.by_src
                found = Graph(self._num_src, self._num_dst, self._by_dst, self._counts, order)
                found._by_src, found._ends = by_src, self._ends
                self._reordered[key] = found
        return found

    def ordered_rows(self, direction: Direction) -> CSR:
        """The CSR with its rows laid out in the order of :meth:`reorder`; cached.

        ``rows`` of the result tells which they are. Without an order it is the CSR itself.
        """
        if self._order is None:
            return self.csr(direction)
        found = self._ordered_rows.get(direction)
        if found is None:
            made = ordered_rows(self.csr(direction), self._order.of(direction))
            found = self._ordered_rows.setdefault(direction, made)
        return found

    def _transposed(self) -> CSR:
        if self._ends is not None:
            return sorted_by_source(*self._ends, self._num_src)
        return transposed(self._by_dst, self._num_src)

    def places_by_src(self) -> Tensor | None:
        """Where each edge of ``by_src`` stands in ``by_dst``, integer [E]; cached. None: there."""
        if "src" not in self._places:
            ids, by_src = self.by_dst.edge_ids, self.by_src.edge_ids
            if ids is not None:
                places = torch.empty_like(ids)
                places[ids.long()] = torch.arange(len(ids), dtype=ids.dtype, device=ids.device)
                by_src = places if by_src is None else places[by_src.long()]
            self._places["src"] = by_src
        return self._places["src"]

    def splits(self, direction: Direction, chunk: int) -> Splits:
        """Row chunks of at most ``chunk`` neighbours (see :class:`Splits`), cached."""
        if not 1 <= chunk <= MAX_CHUNK:
            raise invalid("chunk", "out of range", chunk, f"1 to {MAX_CHUNK}")
        key = (direction, chunk)
        found = self._splits.get(key)
        if found is None:
            with self._lock:
                found = self._splits.get(key)
                if found is None:
                    indptr = self.csr(direction).indptr
                    if key not in self._counts:
                        counted = count_splits(indptr.diff(), (chunk,))[0].tolist()
                        self._counts[key] = tuple(counted)
                    order = None if self._order is None else self._order.of(direction)
                    sizes = self._counts[key]
                    found = self._splits[key] = make_splits(indptr, chunk, *sizes, order=order)
        return found

    def stats(self, direction: Direction) -> DegreeStats:
        """In-degree (``"dst"``) or out-degree (``"src"``) statistics, cached."""
        found = self._stats.get(direction)
        if found is None:
            found = self._stats[direction] = degree_stats(self.csr(direction).indptr.diff())
        return found

    def block_sparse(self, direction: Direction) -> BlockSparse:
        """Tiles of 16 x 16 for tensor cores (see :class:`BlockSparse`), cached.

        Their rows are those of :meth:`ordered_rows`.
        """
        found = self._blocks.get(direction)
        if found is None:
            with self._lock:
                found = self._blocks.get(direction)
                if found is None:
                    csr = self.ordered_rows(direction)
                    columns = self.num_src if direction == "dst" else self.num_dst
                    found = build_block_sparse(csr.indptr, csr.indices, columns)
                    self._blocks[direction] = found
                    self._block_stats[direction] = found.stats
        return found

    def block_places(self, direction: Direction) -> Tensor:
        """Where each edge of :meth:`ordered_rows` stands in the tiles (:func:`edge_places`)."""
        found = self._block_places.get(direction)
        if found is None:
            csr = self.ordered_rows(direction)
            columns = self.num_src if direction == "dst" else self.num_dst
            places = edge_places(csr.indptr, csr.indices, columns)
            found = self._block_places.setdefault(direction, places)
        return found

    def block_stats(self, direction: Direction) -> BlockStats:
        """What the tiles would be, or are: estimated from a sample until they are built; cached."""
        found = self._block_stats.get(direction)
        if found is None:
            csr = self.ordered_rows(direction)
            found = self._block_stats.setdefault(direction, sample_stats(csr.indptr, csr.indices))
        return found

    def nbytes(self) -> int:
        """Bytes held now, with lazily built parts, reordered graphs and tables of products."""
        own = self._by_dst.nbytes() + (0 if self._by_src is None else self._by_src.nbytes())
        return own + self._bytes_beside() + sum(g._bytes_beside() for g in self._reordered.values())

    def _bytes_beside(self) -> int:
        """Bytes of all but the CSRs, which reordered graphs share."""
        parts: list[Any] = [*self._splits.values(), *self._blocks.values()]
        parts += [*self._ordered_rows.values()]
        if self._order is not None:
            parts.append(self._order)
        if isinstance(self._reversed, Graph):
            parts += self._reversed._splits.values()
        held = (*self._block_places.values(), *self._places.values())
        places = sum(t.numel() * t.element_size() for t in held if t is not None)
        return int(places + sum(p.nbytes() for p in parts)) + self._kept_bytes()

    def _kept_bytes(self) -> int:
        """Bytes of the tensors, and of the workspaces, among what the runtime keeps here."""
        kept: list[Any] = []
        for plan in list(self.plans.values()):
            kept += plan.values() if isinstance(plan, dict) else [plan]
        tensors = sum(t.numel() * t.element_size() for t in kept if isinstance(t, Tensor))
        spaces = (getattr(plan, "workspace_bytes", None) for plan in kept)
        return tensors + sum(space() for space in spaces if callable(space))

    def clear(self) -> None:
        """Drop what was built lazily; it is built again when needed. An order stays."""
        with self._lock:
            self.plans.clear()
            self._reordered.clear()
            self._ordered_rows.clear()
            if not isinstance(self._reversed, weakref.ref):  # else both CSRs are another's
                self._reversed = None
                if self._order is None:
                    self._by_src = None
            self._splits.clear()
            self._stats.clear()
            self._blocks.clear()
            self._block_stats.clear()
            self._block_places.clear()
            self._places.clear()

    def __repr__(self) -> str:
        return (
            f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, "
            f"num_edges={self.num_edges}, device='{self.device}')"
        )


def _ordered(order: Order, *parts: Any) -> Graph:
    """A graph out of its pickle, with the order that it had."""
    plain = Graph.from_csr(*parts)
    return Graph(plain.num_src, plain.num_dst, plain.by_dst, {}, order)

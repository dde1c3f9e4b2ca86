"""One graph of many relations: nodes of all types in one table, edges with their relation's number.

What a relation computes of a source or for a destination is computed once for each pair (relation,
node) that has an edge, so the work grows with the edges and not with relations times nodes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from gnn_backend.ops.typed_linear import Bounds

T = TypeVar("T")


class Piece(NamedTuple):
    """Edges of one relation.

    Attributes
    ----------
    relation : int
    table : int
        Of the sources.
    src, dst : int32 or int64 Tensor [E]
        Rows of the two tables.
    """

    relation: int
    table: int
    src: Tensor
    dst: Tensor


class Union:
    """Relations between tables of nodes; what is derived of them is made once and kept.

    Parameters
    ----------
    pieces : sequence of Piece
    ends : sequence of int
        Table of each relation's destinations, ascending.
    src_sizes, dst_sizes : sequence of int
        Rows of the tables of sources and of destinations.

    Raises
    ------
    InvalidArgument
        An edge has an end that its table has not.

    Attributes
    ----------
    ends : tuple of int
    src_sizes, dst_sizes : tuple of int
    relations : Relations
        Over the tables one after the other, [sum of sizes, F]; edges in the pieces' order.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        ends: Sequence[int],
        src_sizes: Sequence[int],
        dst_sizes: Sequence[int],
    ) -> None:
        self.ends, self.src_sizes, self.dst_sizes = tuple(ends), tuple(src_sizes), tuple(dst_sizes)
        self._kept: dict[object, object] = {}
        self._lock = threading.RLock()
        with torch.inference_mode(False), torch.no_grad():
            self._local, self.relations = self._joined(pieces)

    def _joined(self, pieces: Sequence[Piece]) -> tuple[tuple[Tensor, Tensor], Relations]:
        device = pieces[0].src.device
        counts = torch.tensor([len(piece.src) for piece in pieces])
        starts = (_begins(self.src_sizes), _begins(self.dst_sizes))
        tables = [(p.table, self.ends[p.relation], p.relation) for p in pieces]
        known = torch.tensor(
            [
                (starts[0][s], starts[1][d], self.src_sizes[s], self.dst_sizes[d], r)
                for s, d, r in tables
            ]
        )
        owner = torch.repeat_interleave(counts.to(device), output_size=int(counts.sum()))
        src_start, dst_start, num_src, num_dst, types = known.to(device)[owner].unbind(1)
        src = torch.cat([piece.src for piece in pieces]).long()
        dst = torch.cat([piece.dst for piece in pieces]).long()
        outside = (src < 0) | (src >= num_src) | (dst < 0) | (dst >= num_dst)
        if bool(outside.any()):
            raise invalid("edges", "an end is out of range", "a node that its table has not",
                          "0 to the number of nodes - 1")  # fmt: skip
        sizes = sum(self.src_sizes), sum(self.dst_sizes)
        graph = Graph.from_edge_index(torch.stack((src + src_start, dst + dst_start)), *sizes)
        return (src, dst), Relations(graph, types, len(self.ends))

    @property
    def device(self) -> torch.device:
        return self.relations.device

    @property
    def num_relations(self) -> int:
        return len(self.ends)

    def keep(self, key: object, make: Callable[[], T]) -> T:
        """What was made under this key, or is made now."""
        with self._lock:
            if key not in self._kept:
                with torch.inference_mode(False), torch.no_grad():
                    self._kept[key] = make()
            return self._kept[key]  # type: ignore[return-value]

    def nbytes(self) -> int:
        """Bytes held now."""
        with self._lock:
            kept = list(self._kept.values())
        graphs = [self.relations.graph, *(value for value in kept if isinstance(value, Graph))]
        tensors = [*self._local, *(value for value in kept if isinstance(value, Tensor))]
        held = sum(graph.nbytes() for graph in graphs) + sum(t.nbytes for t in tensors)
        return held + self.relations.nbytes()

    # ------------------------------------------------------------------ graphs between domains

    def graph(self, elements: Domain, source: Domain, target: Domain) -> Graph:
        """The graph whose edges are the ``elements``, from their ``source`` to their ``target``."""

        def make() -> Graph:
            count = self.relations.num(elements)
            ends = [self._index(elements, end, count) for end in (source, target)]
            sizes = self.relations.num(source), self.relations.num(target)
            return Graph.from_edge_index(torch.stack(ends), *sizes)

        return self.keep(("graph", elements, source, target), make)

    def _index(self, elements: Domain, end: Domain, count: int) -> Tensor:
        found = self.relations.index(elements, end)
        if found is None:
            return torch.arange(count, device=self.device)
        return found.long()

    def bounds(self, pairs: Domain) -> Bounds:
        """Where the pairs of each relation begin and end."""
        segments = self.relations.by_type(pairs, Domain.EDGE_TYPE)
        return Bounds(segments.ptr, segments.lengths)

    # ------------------------------------------------------------------ factors of edges

    def degree_at_edges(self, domain: Domain) -> Tensor:
        """Edges of the pair that each edge belongs to, float64 [E]."""
        index = self.relations.index(Domain.EDGE, domain)
        degree = self.relations.degree(domain).double()
        return degree if index is None else degree[index.long()]

    def symmetric(self) -> Tensor:
        """One over the root of the in-degrees that both ends have in the relation, float64 [E].

        For relations of a table with itself. A degree of 0 gives 0.
        """
        rows = self.rows(dense=True)
        begins = torch.tensor(rows.begins, device=self.device)
        types = self.relations.index(Domain.EDGE, Domain.EDGE_TYPE)
        assert types is not None
        start = begins[types.long()]
        src, dst = (start + local for local in self._local)
        degree = torch.bincount(dst, minlength=rows.count).double()
        factor = degree.pow(-0.5)
        factor = factor.masked_fill(torch.isinf(factor), 0.0)
        return factor[src] * factor[dst]

    # ------------------------------------------------------------------ rows of the result

    def rows(self, dense: bool, divisors: tuple[int, ...] | None = None) -> Rows:
        """Where results go; ``divisors``: by what those of each table are divided."""
        return self.keep(("rows", dense, divisors), lambda: Rows(self, dense, divisors))


class Rows:
    """Rows of results: one for each relation and destination (``dense``), or one a destination.

    Attributes
    ----------
    dense : bool
    count : int
    begins : list of int
        Of dense rows, where each relation's begin.
    sizes : list of int
        Rows of each table of destinations.
    lengths : int64 Tensor
        Rows of each relation (dense) or table, in CPU memory.
    bounds : Bounds
        Of these segments.
    """

    def __init__(self, union: Union, dense: bool, divisors: tuple[int, ...] | None) -> None:
        self.union, self.dense, self._divisors = union, dense, divisors
        by_relation = [union.dst_sizes[end] for end in union.ends]
        self.counts = [union.ends.count(t) for t in range(len(union.dst_sizes))]
        per_table = zip(self.counts, union.dst_sizes, strict=True)
        self.sizes = [k * n if dense else n for k, n in per_table]
        self.count, self.begins = sum(self.sizes), _begins(by_relation)
        segments = by_relation if dense else self.sizes
        self.lengths = torch.tensor(segments)
        ends = torch.tensor([0, *itertools.accumulate(segments)], dtype=torch.int64)
        self.bounds = Bounds(ends.to(union.device), tuple(segments))
        self._key = (dense, divisors)

    def target(self, pairs_or_edges: Domain) -> Tensor:
        """Row of each element, int64."""
        relations = self.union.relations
        nodes = relations.index(pairs_or_edges, Domain.DST)
        assert nodes is not None
        if not self.dense:
            return nodes.long()
        starts = _begins(self.union.dst_sizes)
        shift = [b - starts[t] for b, t in zip(self.begins, self.union.ends, strict=True)]
        types = relations.index(pairs_or_edges, Domain.EDGE_TYPE)
        assert types is not None
        return nodes.long() + torch.tensor(shift, device=nodes.device)[types.long()]

    def graph(self, elements: Domain, source: Domain) -> Graph:
        """The graph from the ``source`` of the elements to the rows of the result."""

        def make() -> Graph:
            relations, target = self.union.relations, self.target(elements)
            source_of = self.union._index(elements, source, len(target))
            ends = torch.stack((source_of, target))
            return Graph.from_edge_index(ends, relations.num(source), self.count)

        return self.union.keep(("to rows", elements, source, self.dense), make)

    def from_table(self) -> Graph:
        """The graph with an edge to each row from the destination that it is of."""

        def make() -> Graph:
            device, starts = self.union.device, _begins(self.union.dst_sizes)
            parts = [
                torch.arange(starts[end], starts[end] + self.union.dst_sizes[end], device=device)
                for end in self.union.ends
            ]
            return _gathering(torch.cat(parts), sum(self.union.dst_sizes))

        return self.union.keep("dense from table", make)

    def from_segments(self) -> Graph:
        """The graph with an edge to each row from its relation (dense) or table."""

        def make() -> Graph:
            lengths = self.lengths.to(self.union.device)
            owner = torch.repeat_interleave(lengths, output_size=self.count)
            return _gathering(owner, len(lengths))

        return self.union.keep(("from segments", self.dense), make)

    def scale(self, elements: Domain, dtype: torch.dtype) -> Tensor | None:
        """One over the divisor of each element, [elements]; None: 1."""
        if self._divisors is None:
            return None

        def make() -> Tensor:
            types = self.union.relations.index(elements, Domain.EDGE_TYPE)
            assert types is not None
            return self._shares().to(types.device, dtype)[types.long()]

        return self.union.keep(("scale", elements, dtype, self._key), make)

    def mixing(self, dtype: torch.dtype) -> Tensor | None:
        """Share of each relation in the parameters of each segment [T, R]; None: they are its own.

        What is linear in a parameter and the destination's own row is computed once for all
        relations, with the sum of their parameters.
        """
        if self.dense:
            return None

        def make() -> Tensor:
            found = torch.zeros(len(self.sizes), len(self.union.ends), dtype=torch.float64)
            found[torch.tensor(self.union.ends), torch.arange(len(self.union.ends))] = (
                self._shares()
            )
            return found.to(self.union.device, dtype)

        return self.union.keep(("mixing", dtype, self._key), make)

    def own_share(self, dtype: torch.dtype) -> Tensor:
        """What an unchanged row of each destination counts, [num_dst, 1] of not dense rows."""

        def make() -> Tensor:
            mixing = self.mixing(dtype)
            assert mixing is not None
            lengths = self.lengths.to(self.union.device)
            owner = torch.repeat_interleave(lengths, output_size=self.count)
            return mixing.sum(1)[owner].unsqueeze(1)

        return self.union.keep(("own share", dtype, self._key), make)

    def split(self, out: Tensor) -> list[Tensor]:
        """Results of each table: [rows, ...], of dense rows [relations, rows, ...]."""
        parts = out.split(self.sizes)
        if not self.dense:
            return list(parts)
        shapes = zip(parts, self.counts, self.union.dst_sizes, strict=True)
        return [part.view(k, n, *out.shape[1:]) for part, k, n in shapes]

    def _shares(self) -> Tensor:
        if self._divisors is None:
            return torch.ones(len(self.union.ends), dtype=torch.float64)
        shares = [1.0 / self._divisors[end] for end in self.union.ends]
        return torch.tensor(shares, dtype=torch.float64)


def _begins(sizes: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(sizes, initial=0))[:-1]


def _gathering(index: Tensor, num_src: int) -> Graph:
    """The graph in which destination i has one edge, from ``index[i]``."""
    indptr = torch.arange(len(index) + 1, device=index.device)
    return Graph.from_csr(indptr, index, num_src)

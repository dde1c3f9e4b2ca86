"""`Relations`: the types of a graph's edges and nodes, and which rows belong to which.

A relational program has values with a row for each of several things (see
:class:`gnn_backend.ir.domains.Domain`). Rows are numbered thus: sources, destinations and types by
their number; edges in the caller's order; pairs (node, edge type) that have an edge by (edge type,
node).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnn_backend.errors import invalid
from gnn_backend.graph.build import expand_rows
from gnn_backend.graph.csr import CSR
from gnn_backend.graph.graph import Direction, Graph
from gnn_backend.graph.grouping import bounds, group
from gnn_backend.graph.incidence import Incidence, Segments
from gnn_backend.graph.kept import Kept, kept_beside, nbytes
from gnn_backend.graph.pairs import Pairs, find_pairs
from gnn_backend.graph.splits import MAX_CHUNK, Splits, count_splits, make_splits
from gnn_backend.graph.type_checks import Types, checked_types
from gnn_backend.ir.domains import Domain, reads

_DIRECTION: dict[Domain, Direction] = {
    Domain.DST: "dst", Domain.DST_PAIR: "dst", Domain.SRC: "src", Domain.SRC_PAIR: "src",
}  # fmt: skip
_NODES = {Domain.DST_PAIR: Domain.DST, Domain.SRC_PAIR: Domain.SRC}
_TYPES = (Domain.PARAM, Domain.NODE_TYPE, Domain.EDGE_TYPE)
_CHUNKS = (32, 64, 128, 256)  # sizes of these splits are counted together, with one copy


class _Parts(Kept):
    """What relations keep: all but the graph, which may keep it in turn without a cycle."""

    def __init__(self, types: Types) -> None:
        super().__init__()
        self.types = types
        self.sizes: dict[tuple[Domain, Domain, int], tuple[int, int, int]] = {}
        self.plans: dict[Any, Any] = {}

    def workspace_bytes(self) -> int:
        """What the graph counts as held with it."""
        types = [t for t in (self.types.edge, self.types.src, self.types.dst) if t is not None]
        return nbytes([*types, *self.tensors()])


class Relations:
    """The types of a graph's edges and nodes, and the indices between its domains.

    Immutable and safe to share between threads. What an operator asks for is built on the graph's
    device at the first use, and kept.

    Parameters
    ----------
    graph : Graph
    edge_types : int32 or int64 [E], optional
        In the caller's edge order; None: all edges have one type.
    num_edge_types : int, optional
        By default one more than the largest.
    src_types, dst_types : int32 or int64 [num_src], [num_dst], optional
        Types of the nodes; None: type 0.
    num_node_types : int, optional

    Raises
    ------
    InvalidArgument
        Wrong shape, dtype or device, or a type out of range.

    Attributes
    ----------
    graph : Graph
    edge_types, src_types, dst_types : int32 Tensor or None
    num_edge_types, num_node_types : int
    plans : dict
        What the runtime keeps with the relations.
    """

    def __init__(
        self,
        graph: Graph,
        edge_types: Tensor | None = None,
        num_edge_types: int | None = None,
        src_types: Tensor | None = None,
        dst_types: Tensor | None = None,
        num_node_types: int | None = None,
    ) -> None:
        with torch.inference_mode(False), torch.no_grad():
            types = checked_types(
                graph, edge_types, num_edge_types, src_types, dst_types, num_node_types
            )
        self.graph = graph
        self._kept = _Parts(types)

    @classmethod
    def _of(cls, graph: Graph, kept: _Parts) -> Relations:
        found = cls.__new__(cls)
        found.graph, found._kept = graph, kept
        return found

    @property
    def edge_types(self) -> Tensor | None:
        return self._kept.types.edge

    @property
    def src_types(self) -> Tensor | None:
        return self._kept.types.src

    @property
    def dst_types(self) -> Tensor | None:
        return self._kept.types.dst

    @property
    def num_edge_types(self) -> int:
        return self._kept.types.num_edge_types

    @property
    def num_node_types(self) -> int:
        return self._kept.types.num_node_types

    @property
    def plans(self) -> dict[Any, Any]:
        return self._kept.plans

    @property
    def device(self) -> torch.device:
        return self.graph.device

    # ------------------------------------------------------------------ domains

    def num(self, domain: Domain) -> int:
        """Rows of a domain; those of pairs are counted when they are first asked for."""
        if domain in _NODES:
            return len(self._pairs(domain))
        return {
            Domain.PARAM: 1,
            Domain.NODE_TYPE: self.num_node_types,
            Domain.EDGE_TYPE: self.num_edge_types,
            Domain.SRC: self.graph.num_src,
            Domain.DST: self.graph.num_dst,
            Domain.EDGE: self.graph.num_edges,
        }[domain]

    def index(self, fine: Domain, coarse: Domain) -> Tensor | None:
        """Row of ``coarse`` that each row of ``fine`` belongs to.

        Returns
        -------
        int32 [num(fine)], or None
            None: the row of the same number.

        Raises
        ------
        InvalidArgument
            Rows of ``fine`` do not belong to one row of ``coarse``.
        """
        _check_reads("coarse", fine, coarse)
        if fine is coarse:
            return None
        if (fine, coarse) == (Domain.EDGE, Domain.SRC) and self.graph.by_dst.edge_ids is None:
            return self.graph.by_dst.indices
        return self._kept.get(("index", fine, coarse), lambda: self._index(fine, coarse))

    def by_type(self, fine: Domain, types: Domain) -> Segments:
        """Rows of ``fine`` grouped by their type.

        Parameters
        ----------
        fine : Domain
        types : Domain
            A type that rows of ``fine`` have, or ``PARAM`` for all in one segment.
        """
        if types not in _TYPES:
            raise invalid("types", "not a type", types.value, [t.value for t in _TYPES])
        _check_reads("types", fine, types)
        return self._kept.get(("segments", fine, types), lambda: self._segments(fine, types))

    def incidence(self, rows: Domain, elements: Domain) -> Incidence:
        """Elements grouped by the row that they belong to."""
        _check_reads("rows", elements, rows)
        csr = self._csr(rows, elements)
        if csr is not None:
            indptr, order = csr.indptr, csr.edge_ids
        else:
            indptr, order = self._groups(rows, elements)
        return Incidence(
            rows, elements, indptr, order, self.num(elements),
            lambda domain: self._at_places(rows, elements, domain),
            lambda chunk: self._splits(rows, elements, indptr, chunk),
        )  # fmt: skip

    def degree(self, domain: Domain) -> Tensor:
        """Edges of each row, float32 [num(domain)].

        Raises
        ------
        InvalidArgument
            Node types: of an edge's two ends it would not be clear which.
        """
        if domain is Domain.EDGE:
            return self._kept.get(
                ("degree", domain), lambda: torch.ones(self.graph.num_edges, device=self.device)
            )
        _check_reads("domain", Domain.EDGE, domain)
        return self._kept.get(
            ("degree", domain), lambda: self.incidence(domain, Domain.EDGE).indptr.diff().float()
        )

    def nbytes(self) -> int:
        """Bytes held now beside the graph's."""
        return self._kept.workspace_bytes()

    def __repr__(self) -> str:
        return (
            f"Relations({self.graph!r}, num_edge_types={self.num_edge_types}, "
            f"num_node_types={self.num_node_types})"
        )

    # ------------------------------------------------------------------ how they are made

    def _pairs(self, domain: Domain) -> Pairs:
        def make() -> Pairs:
            csr = self.graph.csr(_DIRECTION[domain])
            return find_pairs(csr, self._several(Domain.EDGE), self.num_edge_types)

        return self._kept.get(("pairs", domain), make)

    def _several(self, domain: Domain) -> Tensor | None:
        """Types of edges or nodes, where they may differ."""
        types = self._kept.types
        if domain is Domain.EDGE:
            return types.edge if types.num_edge_types > 1 else None
        by_end = types.src if domain is Domain.SRC else types.dst
        return by_end if types.num_node_types > 1 else None

    def _index(self, fine: Domain, coarse: Domain) -> Tensor:
        if coarse in _TYPES and self.num(coarse) == 1:
            return self._zeros(fine)
        if fine in _NODES:
            pairs, nodes = self._pairs(fine), _NODES[fine]
            if coarse is Domain.EDGE_TYPE:
                return expand_rows(pairs.type_ptr, len(pairs))
            return pairs.nodes if coarse is nodes else _at(self.index(nodes, coarse), pairs.nodes)
        if coarse in _TYPES:
            types = self._several(fine)
            return self._zeros(fine) if types is None else types
        if coarse in _NODES:
            pairs = self._pairs(coarse)
            return _scattered(expand_rows(pairs.indptr, self.graph.num_edges), pairs.order)
        by_dst = self.graph.by_dst
        rows = by_dst.indices
        if coarse is Domain.DST:
            rows = expand_rows(by_dst.indptr, self.graph.num_edges)
        return _scattered(rows, by_dst.edge_ids)

    def _zeros(self, domain: Domain) -> Tensor:
        return torch.zeros(self.num(domain), dtype=torch.int32, device=self.device)

    def _csr(self, rows: Domain, elements: Domain) -> CSR | None:
        """The graph's own, where it groups the edges by these rows."""
        if elements is Domain.EDGE and rows in _NODES.values():
            return self.graph.csr(_DIRECTION[rows])
        return None

    def _groups(self, rows: Domain, elements: Domain) -> tuple[Tensor, Tensor | None]:
        """Bounds and order of the elements of each row."""
        if elements is Domain.EDGE and rows in _NODES:
            pairs = self._pairs(rows)
            return pairs.indptr, pairs.order
        if rows is Domain.EDGE_TYPE and elements in _NODES:
            return self._pairs(elements).type_ptr, None
        return self._kept.get(("groups", rows, elements), lambda: self._grouped(rows, elements))

    def _grouped(self, rows: Domain, elements: Domain) -> tuple[Tensor, Tensor | None]:
        count, places = self.num(rows), self.num(elements)
        if rows is elements:
            return torch.arange(count + 1, dtype=torch.int32, device=self.device), None
        if count == 1 and rows in _TYPES:
            return torch.arange(2, dtype=torch.int32, device=self.device) * places, None
        keys = self.index(elements, rows)
        assert keys is not None
        if elements in self._kept.types.ascending:
            return bounds(keys, count), None
        return group(keys, count)

    def _segments(self, fine: Domain, types: Domain) -> Segments:
        if fine in _NODES and types is Domain.EDGE_TYPE:
            pairs = self._pairs(fine)
            return Segments(pairs.type_ptr, None, pairs.lengths)
        ptr, order = self._groups(types, fine)
        return Segments(ptr, order, tuple(ptr.diff().tolist()))

    def _at_places(self, rows: Domain, elements: Domain, domain: Domain) -> Tensor | None:
        """What :meth:`Incidence.index` gives."""
        _check_reads("domain", elements, domain)
        csr = self._csr(rows, elements)
        if csr is not None:
            if (
                _DIRECTION.get(domain, _DIRECTION[rows]) != _DIRECTION[rows]
                and domain not in _NODES
            ):
                return csr.indices
            indptr, order = csr.indptr, csr.edge_ids
        else:
            indptr, order = self._groups(rows, elements)
        if domain is elements:
            return order
        if domain is rows:
            key, count = ("rows", rows, elements), self.num(elements)
            return self._kept.get(key, lambda: expand_rows(indptr, count))
        if order is None:
            return self.index(elements, domain)
        return self._kept.get(
            ("places", rows, elements, domain), lambda: _at(self.index(elements, domain), order)
        )

    def _splits(self, rows: Domain, elements: Domain, indptr: Tensor, chunk: int) -> Splits:
        if self._csr(rows, elements) is not None:
            return self.graph.splits(_DIRECTION[rows], chunk)
        if not 1 <= chunk <= MAX_CHUNK:
            raise invalid("chunk", "out of range", chunk, f"1 to {MAX_CHUNK}")

        def make() -> Splits:
            chunks = (chunk, *_CHUNKS)
            sizes = self._kept.sizes.get((rows, elements, chunk))
            if sizes is None:
                counted = count_splits(indptr.diff(), chunks).tolist()
                for length, found in zip(chunks, counted, strict=True):
                    self._kept.sizes[rows, elements, length] = tuple(found)
                sizes = self._kept.sizes[rows, elements, chunk]
            return make_splits(indptr, chunk, *sizes)

        return self._kept.get(("splits", rows, elements, chunk), make)


def relations_of(
    graph: Graph,
    edge_types: Tensor | None = None,
    num_edge_types: int | None = None,
    src_types: Tensor | None = None,
    dst_types: Tensor | None = None,
    num_node_types: int | None = None,
) -> Relations:
    """The :class:`Relations` of a graph and these types, as made before or now.

    They are kept with the graph (see :func:`kept_beside`).
    """

    def make() -> _Parts:
        return Relations(
            graph, edge_types, num_edge_types, src_types, dst_types, num_node_types
        )._kept

    tensors = (edge_types, src_types, dst_types)
    parts = kept_beside(graph, "relations", tensors, (num_edge_types, num_node_types), make)
    return Relations._of(graph, parts)


def _check_reads(argument: str, fine: Domain, coarse: Domain) -> None:
    if not reads(fine, coarse):
        raise invalid(argument, f"{fine.value} rows do not belong to it", coarse.value,
                      f"coarser than {fine.value}")  # fmt: skip


def _at(table: Tensor | None, order: Tensor) -> Tensor:
    """``table[order]``; None: the identity."""
    return order if table is None else table[order.long()]


def _scattered(values: Tensor, order: Tensor | None) -> Tensor:
    """The values of places, by the caller's edge."""
    if order is None:
        return values
    out = torch.empty_like(values)
    out[order.long()] = values
    return out

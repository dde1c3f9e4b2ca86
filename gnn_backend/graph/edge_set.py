"""`EdgeSet`: which pairs of nodes of a graph are joined by an edge, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from gnn_backend.graph.csr import CSR, transposed
from gnn_backend.graph.graph import Graph
from gnn_backend.runtime import cpu_module

_KEY = "edge set"


@dataclass(frozen=True)
class EdgeSet:
    """Edges of a graph with as many sources as destinations, to look pairs of nodes up in.

    Attributes
    ----------
    indptr, indices : ndarray
        The graph's rows by source, in ascending order; shared with it on the CPU.
    symmetric : bool
        Every edge is there as often in the other direction.
    edges : int
        Edges between different nodes, duplicates included.
    pairs : int
        Ordered pairs of different nodes with an edge in either direction.
    extra_bytes : int
        Bytes held beside those of the graph.
    """

    indptr: np.ndarray
    indices: np.ndarray
    symmetric: bool
    edges: int
    pairs: int
    extra_bytes: int

    def workspace_bytes(self) -> int:
        """What the graph counts as held with it."""
        return self.extra_bytes

    def absent(
        self, numbers: np.ndarray, count: int, *, either: bool, swapped: bool = False
    ) -> Tensor:
        """The first pairs of nodes, of those with the given numbers, that no edge joins.

        Parameters
        ----------
        numbers : int64 [K]
            ``(N - 1) * first + second``, less one in the second where it is above the first:
            pairs of different nodes, row by row.
        count : int
            How many at most.
        either : bool
            An edge in either direction joins them.
        swapped : bool
            The edges run from the second node of a pair to the first.

        Returns
        -------
        Tensor, int32 [2, P]
        """
        pairs = np.empty((2, min(count, len(numbers))), np.int32)
        found = _run("keep_absent", numbers, self.indptr, self.indices, either, swapped, pairs)
        return torch.from_numpy(pairs)[:, :found]


def edge_set(graph: Graph) -> EdgeSet:
    """The edge set of a graph, made at first use and kept with it.

    Parameters
    ----------
    graph : Graph
        As many sources as destinations.
    """
    found = graph.plans.get(_KEY)
    if found is None:
        found = graph.plans[_KEY] = _made(graph)
    return found  # type: ignore[no-any-return]


def _made(graph: Graph) -> EdgeSet:
    rows = _on_the_cpu(graph.by_src)
    if not _run("ascends", *_arrays(rows)):  # by_src follows the edges of a graph that keeps them
        rows = _on_the_cpu(transposed(graph.by_dst, graph.num_src))
    # Rows made of ascending ones are ascending, so that equal rows are equal arrays.
    back = transposed(rows, graph.num_dst)
    symmetric = torch.equal(back.indptr, rows.indptr) and torch.equal(back.indices, rows.indices)
    counts = np.zeros(2, np.int64)
    _run("count_pairs", *_arrays(rows), counts)
    shared = rows.indices.data_ptr() == graph.by_src.indices.data_ptr()
    held = 0 if shared else rows.nbytes()
    return EdgeSet(*_arrays(rows), symmetric, int(counts[0]), int(counts[1]), held)


def _on_the_cpu(csr: CSR) -> CSR:
    return CSR(csr.indptr.cpu(), csr.indices.cpu(), None)


def _arrays(csr: CSR) -> tuple[np.ndarray, np.ndarray]:
    return csr.indptr.numpy(), csr.indices.numpy()


def _run(name: str, *arguments: Any) -> Any:
    types = tuple(numba.typeof(argument) for argument in arguments)
    return cpu_module.compiled("edge_set", name, types)(*arguments)

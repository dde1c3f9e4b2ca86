"""Edges of an undirected graph in compressed rows, for communities on the CPU (Numba)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from torch import Tensor

from gnn_backend.graph.communities import MANY_EDGES, PASSES
from gnn_backend.graph.counting_sort import group_cpu
from gnn_backend.runtime import cpu_module

if TYPE_CHECKING:
    from gnn_backend.graph.graph import Graph


def _run(name: str, *arguments: Any) -> Any:
    types = tuple(numba.typeof(argument) for argument in arguments)
    return cpu_module.compiled("communities", name, types)(*arguments)


class CountedEdges:
    """Edges by row, worked on one node after the other.

    Parameters
    ----------
    indptr : int32 or int64 [N + 1]
    columns : int32 [E]
    weights : int64 [E], or empty
        Empty: 1 each.
    """

    def __init__(self, indptr: np.ndarray, columns: np.ndarray, weights: np.ndarray) -> None:
        self.indptr, self.columns, self.weights = indptr, columns, weights

    @classmethod
    def of(cls, graph: Graph, bipartite: bool) -> CountedEdges:
        """The edges of a graph without their directions; of a bipartite one sources come first."""
        in_edges, out_edges = graph.by_dst, graph.by_src
        count = graph.num_edges
        none = np.empty(0, np.int64)
        if bipartite:
            ptr = torch.cat([out_edges.indptr.long(), in_edges.indptr[1:].long() + count])
            both = torch.cat([out_edges.indices + graph.num_src, in_edges.indices])
            return cls(ptr.numpy(), both.numpy(), none)
        ptr = in_edges.indptr.long() + out_edges.indptr
        columns = np.empty(2 * count, np.int32)
        parts = (in_edges.indptr, in_edges.indices, out_edges.indptr, out_edges.indices)
        _run("join", *(part.contiguous().numpy() for part in parts), columns)
        return cls(ptr.numpy(), columns, none)

    def propagate(self, sizes: Tensor, bound: int, seed: int) -> Tensor:
        count = sizes.numel()
        generator = torch.Generator().manual_seed(seed)
        rank = torch.randperm(count, generator=generator).numpy()
        visited = torch.randperm(count, generator=generator).numpy()
        labels, held = np.arange(count), sizes.numpy().copy()
        for _ in range(PASSES if self.columns.size < MANY_EDGES else 1):
            _run(
                "propagate", self.indptr, self.columns, self.weights, visited, rank, labels,
                sizes.numpy(), held, bound, np.zeros(count, np.int64), np.empty(count, np.int64),
            )  # fmt: skip
        return torch.from_numpy(labels)

    def contract(self, labels: Tensor, count: int) -> CountedEdges:
        nodes = torch.arange(labels.numel(), dtype=torch.int32)
        ptr, members, _, _ = group_cpu(labels, nodes, count)
        indptr = np.zeros(count + 1, np.int64)
        # Memory that is not written to is not taken.
        columns = np.empty(self.columns.size, np.int32)
        weights = np.empty(self.columns.size, np.int64)
        total = _run(
            "contract", self.indptr, self.columns, self.weights, ptr.numpy(), members.numpy(),
            labels.numpy(), indptr, columns, weights,
            np.zeros(count, np.int64), np.empty(count, np.int64),
        )  # fmt: skip
        return CountedEdges(indptr, columns[:total].copy(), weights[:total].copy())

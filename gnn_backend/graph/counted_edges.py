"""Edges of an undirected graph in compressed rows, for communities on the CPU (Numba)."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from gnn_backend.graph.communities import PASSES
from gnn_backend.graph.counting_sort import group_cpu
from gnn_backend.runtime import cpu_module


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
    def from_ends(cls, rows: Tensor, columns: Tensor, count: int) -> CountedEdges:
        """Of the ends int32 [E] of edges given both ways."""
        indptr, grouped, _, _ = group_cpu(rows, columns, count)
        return cls(indptr.numpy(), grouped.numpy(), np.empty(0, np.int64))

    def propagate(self, sizes: Tensor, bound: int, seed: int) -> Tensor:
        count = sizes.numel()
        generator = torch.Generator().manual_seed(seed)
        rank = torch.randperm(count, generator=generator).numpy()
        visited = torch.randperm(count, generator=generator).numpy()
        labels, held = np.arange(count), sizes.numpy().copy()
        for _ in range(PASSES):
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

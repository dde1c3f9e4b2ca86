"""How often the rows that neighbours are read from come back before a cache has lost them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_backend.graph.csr import CSR

#: Edges in a row of which the distinct neighbours are counted, and how many samples of each.
WINDOWS = {1 << 8: 64, 1 << 11: 64, 1 << 14: 16, 1 << 17: 8, 1 << 20: 2}


class Locality(NamedTuple):
    """Distinct neighbours among successive edges, in one order of the rows.

    Attributes
    ----------
    num_edges : int
    num_columns : int
        Nodes at the other end.
    windows : tuple of (int, float)
        Edges, ascending, and the mean number of distinct neighbours among as many.
    """

    num_edges: int
    num_columns: int
    windows: tuple[tuple[int, float], ...]

    def misses(self, rows: float) -> float:
        """Share of the edges whose neighbour is read anew, of a cache that holds ``rows`` rows.

        A cache is taken to be filled by windows of edges one after the other, so that each distinct
        neighbour of a window is read once. Between two windows distinct neighbours grow as a power
        of the edges.
        """
        before, seen, rows = 1.0, 1.0, max(rows, 1.0)
        for edges, distinct in self.windows:
            if distinct > rows:
                steps = math.log2(edges / before), math.log2(distinct / seen)
                filled = before * 2 ** (steps[0] / steps[1] * math.log2(rows / seen))
                return min(1.0, rows / filled)
            before, seen = float(edges), max(distinct, 1.0)
        # All that was looked at fits: what is left are the first reads of each neighbour.
        return min(1.0, seen / before, self.num_columns / max(1, self.num_edges))


def sample_locality(csr: CSR, num_columns: int, order: Tensor | None = None) -> Locality:
    """Count distinct neighbours in samples of a CSR, its rows in an order.

    Costs two scans of the rows, a sort of four million ids at most, and one device-to-host copy.

    Parameters
    ----------
    csr : CSR
        Its rows by number.
    num_columns : int
    order : integer [rows], optional
        Place -> row; by default by number.
    """
    num_edges, device = csr.indices.numel(), csr.indices.device
    degree, begin = csr.indptr.diff(), csr.indptr[:-1]
    if order is not None:
        degree, begin = degree[order.long()], begin[order.long()]
    end = degree.cumsum(0, dtype=torch.int64)
    start = end - degree
    fitting = {edges: count for edges, count in WINDOWS.items() if edges <= num_edges}
    means = []
    for edges, samples in fitting.items():
        count = min(samples, num_edges // edges)
        first = torch.arange(count, device=device) * ((num_edges - edges) // max(1, count - 1))
        position = first[:, None] + torch.arange(edges, device=device)
        row = torch.searchsorted(end, position, right=True)
        neighbour = csr.indices[begin[row].long() + position - start[row]].sort(1).values
        means.append(((neighbour[:, 1:] != neighbour[:, :-1]).sum(1) + 1).double().mean())
    found = torch.stack(means).tolist() if means else []
    return Locality(num_edges, num_columns, tuple(zip(fitting, found, strict=True)))


def by_length(degree: Tensor, chunk: int) -> Tensor:
    """The order in which CUDA takes rows without any other: place -> row, longest first.

    Rows of more than ``chunk`` edges count as long as that.
    """
    return degree.clamp(max=chunk).argsort(descending=True, stable=True)

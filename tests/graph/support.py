"""Graphs and naive constructions that the tests of ``gnn_backend.graph`` compare with."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from gnn_backend.graph import CSR, Splits

#: Duplicates, a self-loop, rows without edges at both ends, unsorted.
EDGES = [(0, 3), (4, 1), (0, 3), (2, 2), (4, 3), (1, 1), (0, 1), (4, 3)]
NUM_SRC, NUM_DST = 6, 5


def edge_index(edges: list[tuple[int, int]] = EDGES, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(edges, dtype=dtype).reshape(-1, 2).t()


Rows = list[list[tuple[int, int]]]


def by_destination(edges: list[tuple[int, int]], num_dst: int) -> Rows:
    """In-edges of each destination as (source, edge), in the caller's order."""
    rows: Rows = [[] for _ in range(num_dst)]
    for number, (src, dst) in enumerate(edges):
        rows[dst].append((src, number))
    return rows


def by_source(edges: list[tuple[int, int]], num_src: int, num_dst: int) -> Rows:
    """Out-edges of each source as (destination, edge): by destination, then the caller's order."""
    rows: Rows = [[] for _ in range(num_src)]
    for dst, row in enumerate(by_destination(edges, num_dst)):
        for src, number in row:
            rows[src].append((dst, number))
    return rows


def rows_of(csr: CSR) -> Rows:
    """The rows of a CSR as lists of (other endpoint, edge)."""
    ptr, others = csr.indptr.tolist(), csr.indices.tolist()
    edges = list(range(len(others))) if csr.edge_ids is None else csr.edge_ids.tolist()
    return [list(zip(others[a:b], edges[a:b], strict=True)) for a, b in itertools.pairwise(ptr)]


def unpack(splits: Splits) -> list[tuple[int, int, int, int]]:
    """Tasks as (row, slot, begin, count)."""
    found = []
    for row, slot, low, high in splits.tasks.tolist():
        packed = (low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32
        found.append((row, slot, packed & ((1 << 48) - 1), packed >> 48))
    return found

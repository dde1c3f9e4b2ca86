"""Graphs that get self-loops are those that are built with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_backend.graph import Graph
from gnn_backend.graph.self_loops import with_self_loops


def built(edge_index: Tensor, num_src: int, num_dst: int) -> Graph:
    """The same, made of a list of edges."""
    loops = torch.arange(min(num_src, num_dst)).expand(2, -1)
    left = edge_index[:, edge_index[0] != edge_index[1]]
    return Graph.from_edge_index(torch.cat([left, loops], dim=1), num_src, num_dst)


@pytest.mark.parametrize("sizes", [(7, 7), (9, 5), (5, 9), (3, 3)])
@pytest.mark.parametrize("count", [0, 40])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
def test_as_built_with_them(sizes: tuple[int, int], count: int, loops: bool, by_row: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(n, (count,), generator=generator) for n in sizes])
    if not loops:
        edges = edges[:, edges[0] != edges[1]]
    graph = Graph.from_edge_index(edges, *sizes)
    if by_row:  # without numbers of its edges
        order = edges[1].argsort(stable=True)
        edges = edges[:, order]
        graph = Graph.from_csr(graph.by_dst.indptr, graph.by_dst.indices, sizes[0])
    got, want = with_self_loops(graph), built(edges, *sizes)
    assert (got.num_src, got.num_dst) == sizes
    for name in ("indptr", "indices", "edge_ids"):
        for side in ("by_dst", "by_src"):
            mine, theirs = (getattr(getattr(g, side), name) for g in (got, want))
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs), f"{side}.{name}"

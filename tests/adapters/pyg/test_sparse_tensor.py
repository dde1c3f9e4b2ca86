"""torch_sparse's ``SparseTensor``, where it is installed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import gnn_backend
from gnn_backend.adapters.pyg import cache, clear_cache
from gnn_backend.adapters.pyg.edges import Variant
from tests.adapters.pyg.helpers import assert_equal, edges, falls_back, fused, gradients, normal

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATv2Conv

torch_sparse = pytest.importorskip("torch_sparse")

SIZES = [(12, 12), (9, 14), (14, 9)]


def adjacency(
    num_src: int, num_dst: int, value: torch.Tensor | None = None
) -> torch_sparse.SparseTensor:
    src, dst = edges(num_src, num_dst)
    return torch_sparse.SparseTensor(row=dst, col=src, value=value, sparse_sizes=(num_dst, num_src))


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize(("num_src", "num_dst"), SIZES)
def test_equals_stock(num_src: int, num_dst: int, loops: bool) -> None:
    torch.manual_seed(0)
    conv = GATv2Conv((6, 5), 4, heads=2, add_self_loops=loops)
    x, adj_t = (normal(num_src, 6), normal(num_dst, 5, seed=1)), adjacency(num_src, num_dst)
    with fused():
        got = gradients(conv, x, adj_t)
    assert_equal(got, gradients(conv, x, adj_t))


def test_cached_until_freed() -> None:
    clear_cache()
    adj_t, variant = adjacency(12, 12), Variant(12, 12, self_loops=True)
    graph = cache.graph_of(adj_t, variant)
    assert cache.graph_of(adj_t, variant) is graph
    adj_t.storage.col()[0] = 7
    assert cache.graph_of(adj_t, variant) is not graph
    held = weakref.ref(cache.graph_of(adj_t, variant))
    del adj_t, graph
    gc.collect()
    assert held() is None


def test_fallbacks_and_errors() -> None:
    x = normal(12, 6)
    conv = GATv2Conv(6, 4, edge_dim=3, add_self_loops=False)
    weighted = adjacency(12, 12, normal(edges(12, 12).shape[1], 3))
    with falls_back("edge-features"):
        conv(x, weighted)
    for conv in (
        GATv2Conv(6, 4, edge_dim=3),
        GATv2Conv(6, 4, flow="target_to_source", add_self_loops=False),
    ):
        with pytest.raises((NotImplementedError, ValueError)) as stock:
            conv(x, adjacency(12, 12))
        with gnn_backend.enabled(), pytest.raises(type(stock.value)) as ours:
            conv(x, adjacency(12, 12))
        assert str(ours.value) == str(stock.value)

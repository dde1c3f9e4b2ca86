"""Tiles where columns are shared, rows elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gnn_backend import datasets
from gnn_backend.graph import BlockStats, Graph
from gnn_backend.runtime import block_choice
from gnn_backend.runtime.block_choice import predicted_speedup, prefers_tiles, wins

BF16 = torch.bfloat16


def stats(edges_per_tile: float, num_edges: int = 10**6) -> BlockStats:
    return BlockStats(num_edges, num_edges // 1000, num_edges / edges_per_tile)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [16, 64, 128])
def test_density_decides(dtype: torch.dtype, dim: int) -> None:
    assert wins(stats(128), dtype, 2, dim)
    assert not wins(stats(16), dtype, 2, dim)
    assert not wins(stats(4), dtype, 2, dim)
    ratios = [predicted_speedup(stats(n), dtype, 2, dim) for n in (4, 16, 64, 256)]
    assert ratios == sorted(ratios)


def test_narrow_heads_need_more_edges_in_a_tile() -> None:
    density = 32
    assert wins(stats(density), BF16, 2, 128) and not wins(stats(density), BF16, 2, 16)


def test_backward_gains_less() -> None:
    """At 30 edges in a tile forward was 1.6 times as fast, a backward pass as fast as over rows."""
    assert wins(stats(30), BF16, 2, 64) and not wins(stats(30), BF16, 2, 64, backward=True)
    assert wins(stats(51), BF16, 2, 64, backward=True)
    assert wins(stats(128), BF16, 2, 128, backward=True)
    assert not wins(stats(64), BF16, 2, 128, backward=True)


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def test_what_has_no_kernel_never_wins(tf32: None) -> None:
    assert not wins(stats(256), BF16, 2, 40)
    assert not wins(stats(256), torch.float64, 2, 64)
    assert wins(stats(256), torch.float32, 2, 64)
    torch.backends.cuda.matmul.allow_tf32 = False
    assert not wins(stats(256), torch.float32, 2, 64)


def test_small_graphs_are_not_even_sampled() -> None:
    assert not wins(stats(256, 50_000), BF16, 2, 64)
    graph = Graph.from_edge_index(datasets.block_model(256, 64, 0.9), 256, 256)
    assert not prefers_tiles(graph, "dst", BF16, 2, 64)
    assert not graph._block_stats


def test_a_block_model_takes_tiles_and_a_heavy_tailed_graph_rows() -> None:
    dense = Graph.from_edge_index(datasets.block_model(2048, 256, 0.5), 2048, 2048)
    sparse = Graph.from_edge_index(datasets.rmat(40_000, 200_000), 40_000, 40_000)
    for direction in ("dst", "src"):
        assert prefers_tiles(dense, direction, BF16, 2, 64)
        assert not prefers_tiles(sparse, direction, BF16, 2, 64)
    assert not dense._blocks, "tiles were built for a choice"
    assert dense.num_edges > block_choice.MIN_EDGES < sparse.num_edges

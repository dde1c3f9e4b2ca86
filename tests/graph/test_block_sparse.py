"""Tiles of 16 x 16: every edge has its bit, columns are compacted, tasks cover the tiles."""

from __future__ import annotations

import itertools
from collections import Counter

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from gnn_backend import datasets
from gnn_backend.graph import BlockSparse, Graph
from gnn_backend.graph import block_sparse as module
from gnn_backend.graph.block_sparse import TILE, edge_places, sample_stats
from gnn_backend.graph.graph import Direction
from tests.graph.support import unpack


def entry_of(place: int) -> tuple[int, int, int]:
    """Tile, row and column of a place, by the layout of a product of tensor cores."""
    tile, byte, bit = place // 256, place // 8 % 32, place % 8
    return tile, byte // 4 + 8 * (bit // 2 % 2), 2 * (byte % 4) + bit % 2 + 8 * (bit // 4)


def places_of(blocks: BlockSparse) -> list[int]:
    """Places whose bit is set."""
    masks = blocks.masks.view(torch.uint8)
    bits = masks[:, None].int() >> torch.arange(8) & 1
    return bits.flatten().nonzero().flatten().tolist()


def tile_bounds(blocks: BlockSparse) -> list[int]:
    """First tile of every window, read from the tasks."""
    counts = Counter[int]()
    for window, _, _, count in unpack(blocks.splits):
        counts[window] += count
    assert sorted(counts) == list(range(blocks.num_windows))
    return [0, *itertools.accumulate(counts[w] for w in range(blocks.num_windows))]


def pairs_of(blocks: BlockSparse) -> Counter[tuple[int, int]]:
    """The (row, column) pairs that the bitmaps say, with their multiplicity."""
    columns = blocks.columns.view(-1, TILE).tolist()
    bounds = tile_bounds(blocks)
    assert bounds[-1] == blocks.num_tiles
    window = {t: w for w, (a, b) in enumerate(itertools.pairwise(bounds)) for t in range(a, b)}
    found = Counter[tuple[int, int]]()
    for place in places_of(blocks):
        tile, row, column = entry_of(place)
        found[window[tile] * TILE + row, columns[tile][column]] += 1
    return found


def check(edges: Tensor, num_src: int, num_dst: int) -> Graph:
    graph = Graph.from_edge_index(edges, num_src, num_dst)
    directions: tuple[Direction, ...] = ("dst", "src")
    for direction in directions:
        blocks, csr = graph.block_sparse(direction), graph.csr(direction)
        row, column = (edges[1], edges[0]) if direction == "dst" else (edges[0], edges[1])
        pairs = Counter(zip(row.tolist(), column.tolist(), strict=True))
        assert pairs_of(blocks) == pairs
        check_compact(blocks, pairs)
        rows = {r for r, _ in pairs}
        occupied = [
            blocks.occupied[r // TILE].item() >> r % TILE & 1 for r in range(csr.indptr.numel() - 1)
        ]
        assert occupied == [r in rows for r in range(len(occupied))]
        num_columns = num_src if direction == "dst" else num_dst
        places = edge_places(csr.indptr, csr.indices, num_columns).tolist()
        assert sorted(places) == places_of(blocks)
        ptr = csr.indptr.tolist()
        for r, (begin, end) in enumerate(itertools.pairwise(ptr)):
            for e in range(begin, end):
                tile, inner, inner_column = entry_of(places[e])
                assert inner == r % TILE
                assert blocks.columns[tile * TILE + inner_column] == csr.indices[e]
    return graph


def check_compact(blocks: BlockSparse, pairs: Counter[tuple[int, int]]) -> None:
    """A window has as many columns as it needs, ascending, and no tile more."""
    bounds = tile_bounds(blocks)
    for window, (begin, end) in enumerate(itertools.pairwise(bounds)):
        most: Counter[int] = Counter()
        for (row, column), times in pairs.items():
            if row // TILE == window:
                most[column] = max(most[column], times)
        wanted = sorted(most.elements())
        assert end - begin == -(-len(wanted) // TILE)
        held = blocks.columns[begin * TILE : end * TILE].tolist()
        assert held[: len(wanted)] == wanted and not any(held[len(wanted) :])


@hypothesis.given(
    st.integers(1, 50).flatmap(
        lambda src: st.integers(1, 50).flatmap(
            lambda dst: st.tuples(
                st.just((src, dst)),
                st.lists(st.tuples(st.integers(0, src - 1), st.integers(0, dst - 1)), max_size=120),
                st.integers(1, 4),
            )
        )
    )
)
@hypothesis.settings(deadline=None, max_examples=80)
def test_every_edge_has_its_own_bit(
    drawn: tuple[tuple[int, int], list[tuple[int, int]], int],
) -> None:
    (num_src, num_dst), pairs, times = drawn
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
    check(torch.cat([edges] + [edges[:, ::2]] * (times - 1), 1), num_src, num_dst)


@pytest.mark.parametrize("sizes", [(0, 0), (3, 0), (0, 5), (40, 33)])
def test_no_edges(sizes: tuple[int, int]) -> None:
    graph = check(torch.empty(2, 0, dtype=torch.int64), *sizes)
    blocks = graph.block_sparse("dst")
    assert blocks.num_tiles == 0 and blocks.splits.num_tasks == -(-sizes[1] // TILE)
    assert graph.block_stats("dst").edges_per_tile == 0


def test_wide_keys_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = datasets.uniform(70, 50, 400)
    graph = Graph.from_edge_index(edges, 70, 50)
    narrow = graph.block_sparse("dst")
    monkeypatch.setattr(module, "_INT32_MAX", 1000)
    wide = module.build_block_sparse(graph.by_dst.indptr, graph.by_dst.indices, 70)
    assert torch.equal(wide.columns, narrow.columns) and torch.equal(wide.masks, narrow.masks)
    places = edge_places(graph.by_dst.indptr, graph.by_dst.indices, 70)
    assert places.dtype == torch.int64


def test_a_hub_is_split_and_tasks_grow_with_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = torch.stack([torch.arange(1500), torch.full((1500,), 3)])
    graph = Graph.from_edge_index(edges, 1500, 20)
    splits = graph.block_sparse("dst").splits
    assert splits.chunk == 32 and splits.heavy_rows.tolist() == [0]
    assert splits.num_slots == 3 and splits.num_tasks == 4  # 94 tiles, and an empty window
    monkeypatch.setattr(module, "_FULL_TASKS", 1)
    again = module.build_block_sparse(graph.by_dst.indptr, graph.by_dst.indices, 1500)
    assert again.splits.chunk == 64


def test_it_is_kept_with_the_graph_and_counted() -> None:
    graph = Graph.from_edge_index(datasets.uniform(70, 50, 400), 70, 50)
    _, held = graph.by_src, graph.nbytes()
    dst, src = graph.block_sparse("dst"), graph.block_sparse("src")
    assert graph.block_sparse("dst") is dst and graph.block_sparse("src") is src
    assert graph.nbytes() == held + dst.nbytes() + src.nbytes()
    places = graph.block_places("src")
    assert graph.block_places("src") is places
    assert graph.nbytes() == held + dst.nbytes() + src.nbytes() + 4 * 400
    assert dst.nbytes() >= 4 * (dst.num_tiles * 24 + dst.num_windows)
    graph.clear()
    assert graph.block_sparse("dst") is not dst


def test_sampled_tiles_of_a_block_model() -> None:
    edges = datasets.block_model(512, 64, 0.5)
    graph = Graph.from_edge_index(edges, 512, 512)
    estimate = graph.block_stats("dst")
    exact = graph.block_sparse("dst").stats
    assert estimate.num_tiles == pytest.approx(exact.num_tiles, rel=1e-6)  # all 32 windows
    assert graph.block_stats("dst") == exact
    assert exact.edges_per_tile == pytest.approx(128, rel=0.05)


def test_sampled_tiles_of_a_sparse_graph() -> None:
    edges = datasets.uniform(20_000, 2_000, 40_000)
    graph = Graph.from_edge_index(edges, 20_000, 2_000)
    estimate = sample_stats(graph.by_dst.indptr, graph.by_dst.indices)
    exact = graph.block_sparse("dst").stats
    assert estimate.num_tiles == pytest.approx(exact.num_tiles, rel=0.1)
    assert exact.edges_per_tile < 17

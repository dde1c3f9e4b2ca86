"""Graphs by seed and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnn_backend import datasets
from gnn_backend.errors import InvalidArgument

STREAM = [[88, 32, 95, 48, 88, 42], [88, 88, 73, 21, 16, 68]]


def test_rmat_is_seeded_in_range_and_heavy_tailed() -> None:
    edges = datasets.rmat(1000, 20_000)
    assert edges.shape == (2, 20_000) and edges.dtype == torch.int64
    assert int(edges.min()) >= 0 and int(edges.max()) < 1000
    assert torch.equal(edges, datasets.rmat(1000, 20_000))
    assert not torch.equal(edges, datasets.rmat(1000, 20_000, seed=1))
    degrees = edges[1].bincount(minlength=1000)
    assert degrees.max() > 10 * degrees.double().mean()


def test_rmat_stream_does_not_change() -> None:
    """Published figures name a graph by its seed: the first edges of that stream."""
    edges = datasets.rmat(100, 6, seed=0)
    assert edges.tolist() == STREAM


@pytest.mark.parametrize("sizes", [(1, 5), (65, 4), (3, 0)])
def test_rmat_small(sizes: tuple[int, int]) -> None:
    edges = datasets.rmat(*sizes)
    assert edges.shape == (2, sizes[1])
    assert not edges.numel() or int(edges.max()) < sizes[0]


def test_load_named_and_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets.NAMED_GRAPHS, "small", (50, 300))
    named = datasets.load("small")
    assert (named.num_nodes, named.num_edges) == (50, 300)
    file = tmp_path / "tiny.npz"
    fields: dict[str, Any] = {
        "edge_index": np.array([[0, 1], [1, 2]], np.int32), "num_nodes": 4,
        "x_indptr": [0, 1, 1, 3, 3], "x_indices": [2, 0, 1], "x_data": [1.0, 2.0, 3.0], "x_dim": 3,
        "y": [0, 1, 0, 1], "train_idx": [0, 3], "val_mask": [False, True, False, False],
    }  # fmt: skip
    np.savez(file, **fields)
    graph = datasets.load(str(file))
    assert (graph.name, graph.num_nodes, graph.num_edges) == ("tiny", 4, 2)
    assert graph.edge_index.dtype == torch.int64
    assert graph.x is not None and graph.x.tolist() == [[0, 0, 1], [0, 0, 0], [2, 3, 0], [0, 0, 0]]
    assert graph.splits["train"].tolist() == [True, False, False, True]
    assert graph.splits["val"].tolist() == [False, True, False, False] and graph.y is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": [[1.0]]}, "no usable edge_index"),
        ({"edge_index": [[0.0], [1.0]]}, "no usable edge_index"),
        ({"edge_index": [0, 1]}, "no usable edge_index"),
        ({"edge_index": [[0], [5]], "num_nodes": 3}, "out of range"),
        ({"edge_index": [[-1], [0]]}, "out of range"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    file = tmp_path / "bad.npz"
    np.savez(file, **fields)
    with pytest.raises(InvalidArgument, match=message):
        datasets.load(str(file))


def test_files_that_are_no_archives_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.npz"
    file.write_text("not an archive")
    with pytest.raises(InvalidArgument, match="not an npz archive"):
        datasets.load(str(file))


def test_sampled_edges_keep_their_order_and_nodes_their_features() -> None:
    pairs = torch.cartesian_prod(torch.arange(100), torch.arange(5))  # each edge once
    edges = pairs[torch.randperm(500, generator=torch.Generator().manual_seed(0))].T
    x = torch.arange(100.0)[:, None]
    graph = datasets.GraphData("g", edges, 100, x=x, splits={"train": x[:, 0] < 50})
    sample = datasets.sample_edges(graph, 40)
    assert sample.num_edges == 40 and sample.x is not None
    ids = sample.x[:, 0].long()  # a feature is its node's old id
    original = ids[sample.edge_index]
    columns = [edges.T.tolist().index(pair) for pair in original.T.tolist()]
    assert columns == sorted(columns)
    assert torch.equal(sample.splits["train"], ids < 50)
    assert datasets.sample_edges(graph, 500) is graph


def test_block_model_is_dense_within_blocks_alone() -> None:
    edges = datasets.block_model(300, 64, 0.5)
    src, dst = edges
    assert edges.dtype == torch.int64 and torch.equal(src // 64, dst // 64)
    assert int(edges.max()) < 300 and int(src.min()) >= 0
    assert edges.unique(dim=1).shape == edges.shape
    pairs = 4 * 64**2 + 44**2
    assert edges.shape[1] == pytest.approx(0.5 * pairs, rel=0.05)
    assert torch.equal(edges, datasets.block_model(300, 64, 0.5))
    assert not torch.equal(edges, datasets.block_model(300, 64, 0.5, seed=1))
    assert datasets.block_model(10, 16, 1.0).shape == (2, 100)
    assert datasets.block_model(0, 16, 1.0).shape == (2, 0)


@pytest.mark.parametrize("arguments", [(-1, 4, 0.5), (4, 0, 0.5), (4, 4, 1.5)])
def test_no_block_model(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(InvalidArgument, match="not a graph"):
        datasets.block_model(*arguments)


def test_a_block_model_by_name() -> None:
    graph = datasets.load("block-model")
    assert graph.num_nodes == 16_384 and 2_000_000 < graph.num_edges < 2_200_000
    assert torch.equal(graph.edge_index[0] // 256, graph.edge_index[1] // 256)


def test_grid_is_seeded_symmetric_and_of_degree_2_to_4() -> None:
    edges = datasets.grid(30, 40)
    assert torch.equal(edges, datasets.grid(30, 40))
    assert not torch.equal(edges, datasets.grid(30, 40, seed=1))
    degrees = edges[1].bincount(minlength=1200)
    assert sorted(set(degrees.tolist())) == [2, 3, 4]
    step = (edges[0] - edges[1]).abs()
    assert sorted(set(step.tolist())) == [1, 40]
    pairs = {(u, v) for u, v in edges.t().tolist()}
    assert len(pairs) == edges.shape[1] and pairs == {(v, u) for u, v in pairs}
    full = datasets.grid(30, 40, removed=0.0)
    assert full.shape[1] == 2 * (29 * 40 + 30 * 39)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (2, 2)])
def test_small_grids(sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    edges = datasets.grid(*sizes, removed=1.0)
    assert edges.shape[1] == 2 * ((rows - 1) * columns + rows * (columns - 1))


@pytest.mark.parametrize("bad", [(0, 5, 0.5), (5, 0, 0.5), (2, 2, 1.5)])
def test_what_is_no_grid_is_refused(bad: tuple[int, int, float]) -> None:
    with pytest.raises(InvalidArgument, match="not a grid"):
        datasets.grid(bad[0], bad[1], removed=bad[2])


def test_a_grid_by_name_and_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets.GRIDS, "small", (6, 7))
    plain, mixed = datasets.load("small"), datasets.load("small:shuffled")
    assert plain.num_nodes == mixed.num_nodes == 42 and mixed.name == "small:shuffled"
    assert not torch.equal(plain.edge_index, mixed.edge_index)
    for end in range(2):  # the same graph: degrees are dealt out anew, and edges keep their order
        degrees = [g.edge_index[end].bincount(minlength=42) for g in (plain, mixed)]
        assert torch.equal(degrees[0][plain.edge_index[end]], degrees[1][mixed.edge_index[end]])


def test_shuffling_moves_what_belongs_to_the_nodes() -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    y = torch.arange(4) + 10
    graph = datasets.GraphData("path", edges, 4, x=y[:, None].float(), y=y, splits={"val": y > 11})
    mixed = datasets.shuffled(graph, seed=1)
    assert mixed.x is not None and mixed.y is not None
    assert torch.equal(mixed.y[mixed.edge_index], y[edges])
    assert torch.equal(mixed.x[:, 0].long(), mixed.y)
    assert torch.equal(mixed.splits["val"], mixed.y > 11)

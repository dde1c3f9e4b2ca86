"""Graphs by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnn_backend import datasets


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


def test_a_block_model_by_name() -> None:
    graph = datasets.load("block-model")
    assert graph.num_nodes == 16_384 and 2_000_000 < graph.num_edges < 2_200_000
    assert torch.equal(graph.edge_index[0] // 256, graph.edge_index[1] // 256)


def test_a_grid_by_name_and_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets.GRIDS, "small", (6, 7))
    plain, mixed = datasets.load("small"), datasets.load("small:shuffled")
    assert plain.num_nodes == mixed.num_nodes == 42 and mixed.name == "small:shuffled"
    assert not torch.equal(plain.edge_index, mixed.edge_index)
    for end in range(2):  # the same graph: degrees are dealt out anew, and edges keep their order
        degrees = [g.edge_index[end].bincount(minlength=42) for g in (plain, mixed)]
        assert torch.equal(degrees[0][plain.edge_index[end]], degrees[1][mixed.edge_index[end]])


def test_relational_graphs_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets.RELATIONAL, "small", (60, 500, 3, 8))
    plain, typed = datasets.load("small"), datasets.load("small:typed")
    for graph in (plain, typed):
        assert isinstance(graph, datasets.RelationalData)
        assert (graph.num_nodes, graph.num_edges, graph.num_edge_types) == (60, 500, 8)
    assert isinstance(plain, datasets.RelationalData) and plain.node_type is None
    assert torch.equal(plain.edge_index, datasets.relational(60, 500, 8)[0])
    assert isinstance(typed, datasets.RelationalData) and typed.node_type is not None
    assert typed.num_node_types == 3 and len(typed.node_type.unique()) == 3
    assert datasets.load("small:typed:shuffled").name == "small:typed:shuffled"


def test_schemas_have_the_sizes_of_their_graphs() -> None:
    for name, schema in datasets.SCHEMAS.items():
        sizes = sum(schema.nodes.values()), sum(schema.edges.values())
        assert (*sizes, len(schema.nodes), len(schema.edges)) == datasets.RELATIONAL[name]

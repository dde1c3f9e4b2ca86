"""Typed graphs out of triples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnn_backend import datasets
from gnn_backend.config import get_config
from gnn_backend.errors import InvalidArgument

FOLDER = get_config().test_data
TRAIN = [[0, 1, 2], [3, 0, 1]]


def load(tmp_path: Path, **fields: Any) -> datasets.RelationalData:
    file = tmp_path / "knowledge.npz"
    np.savez(file, **fields)
    graph = datasets.load(str(file))
    assert isinstance(graph, datasets.RelationalData)
    return graph


def test_splits_train_on_both_directions(tmp_path: Path) -> None:
    graph = load(tmp_path, train=TRAIN, valid=[[2, 1, 0]], test=[[4, 1, 4]], num_nodes=5)
    assert graph.edge_index.tolist() == [[0, 3, 2, 1], [2, 1, 0, 3]]
    assert graph.edge_type.tolist() == [1, 0, 3, 2] and graph.num_edge_types == 4
    assert {part: rows.tolist() for part, rows in graph.triples.items()} == {
        "train": TRAIN, "val": [[2, 1, 0]], "test": [[4, 1, 4]],
    }  # fmt: skip


def test_one_list_with_names_and_labels(tmp_path: Path) -> None:
    graph = load(
        tmp_path, triples=TRAIN, num_nodes=6, num_relations=3, relation_names=["a", "b", "c"],
        node_section=np.array([0, 1, -1, 1, 0, 0], np.int16), section_names=["x", "y"],
        node_type=np.array([0, 2, 1, 0, 0, 1], np.int8), node_type_names=["p", "q", "r"],
    )  # fmt: skip
    assert graph.edge_index.tolist() == [[0, 3], [2, 1]] and graph.edge_type.tolist() == [1, 0]
    assert (graph.num_edge_types, graph.edge_type_names) == (3, ("a", "b", "c"))
    assert graph.y is not None and graph.y.tolist() == [0, 1, -1, 1, 0, 0]
    assert graph.class_names == ("x", "y") and not graph.triples
    assert graph.node_type is not None and graph.node_type.tolist() == [0, 2, 1, 0, 0, 1]
    assert (graph.num_node_types, graph.node_type_names) == (3, ("p", "q", "r"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"triples": [[0, 1]]}, "no usable triples"),
        ({"train": [[0.0, 1.0, 2.0]]}, "no usable train"),
        ({"triples": TRAIN, "num_nodes": 3}, "num_nodes: an id out of range"),
        ({"triples": TRAIN, "num_relations": 1}, "num_relations: an id out of range"),
        ({"triples": [[0, 0, -1]]}, "out of range"),
    ],
)
def test_bad_triples_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        load(tmp_path, **fields)


@pytest.mark.skipif(not FOLDER, reason="GNN_BACKEND_TEST_DATA names no folder of graphs")
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "types"),
    [
        ("fb15k_237", 14_541, 2 * 272_115, 474),
        ("wn18rr", 40_943, 2 * 86_835, 22),
        ("umls", 135, 2 * 5_216, 92),
        ("wordnet30", 117_659, 364_552, 26),
        ("debian12_packages", 107_538, 411_434, 9),
    ],
)
def test_real_graphs(name: str, nodes: int, edges: int, types: int) -> None:
    path = Path(str(FOLDER)) / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in GNN_BACKEND_TEST_DATA")
    graph = datasets.load(str(path))
    assert isinstance(graph, datasets.RelationalData)
    assert (graph.num_nodes, graph.num_edges, graph.num_edge_types) == (nodes, edges, types)
    assert int(graph.edge_type.max()) == types - 1

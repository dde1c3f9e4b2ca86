"""The examples' datasets, made of the graphs in ``GNN_BACKEND_TEST_DATA``.

Each class has what the example reads of the one whose place it takes. What a file lacks is drawn
from a fixed seed.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

from gnn_backend.config import get_config
from gnn_backend.datasets import GraphData, load_npz
from tests.dgl_examples import pieces

_TREES = {"train": slice(0, 160), "dev": slice(160, 200), "test": slice(200, 240)}
_HELD_OUT, _NEGATIVES = 300, 100  # edges of each of two splits, and non-edges of each of them


def _file(name: str) -> Path:
    folder = get_config().test_data
    if folder is None:
        raise FileNotFoundError(
            "GNN_BACKEND_TEST_DATA: not set; expected the folder with the graphs that the "
            "examples train on"
        )
    return folder / f"{name}.npz"


def _graph(name: str) -> GraphData:
    return load_npz(_file(name))


def _featured(data: GraphData) -> Any:
    """Graph with ``feat`` (rows add up to 1), ``label`` and the masks of its splits."""
    assert data.x is not None and data.y is not None
    g = dgl.graph(tuple(data.edge_index), num_nodes=data.num_nodes)
    g.ndata["feat"] = data.x / data.x.sum(1, keepdim=True).clamp(min=1)
    g.ndata["label"] = data.y
    for part, mask in data.splits.items():
        g.ndata[f"{part}_mask"] = mask
    return g


class Cora:
    """``dgl.data.CoraGraphDataset``: the graph itself."""

    def __init__(self, transform: Callable[[Any], Any] | None = None) -> None:
        g = _featured(_graph("cora"))
        self.graph = g if transform is None else transform(g)
        self.num_classes = int(g.ndata["label"].max()) + 1

    def __getitem__(self, item: int) -> Any:
        return [self.graph][item]

    def __len__(self) -> int:
        return 1


# ---------------------------------------------------------------------- ogb


class NodesToClassify:
    """``DglNodePropPredDataset``: Minesweeper, whose nodes have three to eight neighbours."""

    def __init__(self, name: str) -> None:
        self.name = name
        data = _graph("minesweeper")
        g = _featured(data)
        self.label = g.ndata.pop("label")[:, None]
        splits = {part: mask.nonzero()[:, 0] for part, mask in data.splits.items()}
        self.split = {"train": splits["train"], "valid": splits["val"], "test": splits["test"]}
        self.graph, self.num_classes = g, int(self.label.max()) + 1

    def __getitem__(self, item: int) -> tuple[Any, Tensor]:
        return [(self.graph, self.label)][item]

    def get_idx_split(self) -> dict[str, Tensor]:
        return self.split


class Links:
    """``DglLinkPropPredDataset``: each citation of Cora in one direction, some of them held out."""

    def __init__(self, name: str) -> None:
        self.name = name
        data = _graph("cora")
        generator = torch.Generator().manual_seed(0)
        ends = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
        ends = ends[:, torch.randperm(ends.shape[1], generator=generator)]
        self.split = {}
        for part, begin in (("valid", 0), ("test", _HELD_OUT)):
            src, dst = ends[:, begin : begin + _HELD_OUT]
            size = (_HELD_OUT, _NEGATIVES)
            others = torch.randint(data.num_nodes, size, generator=generator)
            self.split[part] = {
                "source_node": src, "target_node": dst, "target_node_neg": others
            }  # fmt: skip
        self.graph = dgl.graph(tuple(ends[:, 2 * _HELD_OUT :]), num_nodes=data.num_nodes)
        self.graph.ndata["feat"] = data.x

    def __getitem__(self, item: int) -> Any:
        return [self.graph][item]

    def get_edge_split(self) -> dict[str, dict[str, Tensor]]:
        return self.split


# ---------------------------------------------------------------------- graphs to classify


class _Neighbourhoods:
    """Nodes of Cora with their neighbours, each a graph with its first node's class."""

    feature: str
    count: int

    def _make(self, self_loop: bool) -> None:
        data = _graph("cora")
        assert data.x is not None and data.y is not None
        self.graphs, labels = [], []
        for nodes, edges in pieces.neighbourhoods(data.edge_index.numpy(), self.count, seed=0):
            g = dgl.graph(tuple(torch.from_numpy(edges)), num_nodes=len(nodes))
            g.ndata[self.feature] = data.x[torch.from_numpy(nodes)]
            self.graphs.append(dgl.add_self_loop(g) if self_loop else g)
            labels.append(int(data.y[nodes[0]]))
        self.labels = torch.tensor(labels)
        self.width, self.classes = data.x.shape[1], int(data.y.max()) + 1

    def __getitem__(self, item: int) -> tuple[Any, Tensor]:
        return self.graphs[item], self.labels[item]

    def __len__(self) -> int:
        return len(self.graphs)


class LabelledGraphs(_Neighbourhoods):
    """``dgl.data.GINDataset``, as large as its MUTAG."""

    feature, count = "attr", 188

    def __init__(self, name: str, self_loop: bool, degree_as_nlabel: bool = False) -> None:
        self._make(self_loop)
        self.dim_nfeats, self.gclasses = self.width, self.classes


class PooledGraphs(_Neighbourhoods):
    """``dgl.data.LegacyTUDataset``."""

    feature, count = "feat", 400

    def __init__(self, name: str, raw_dir: str) -> None:
        self._make(self_loop=False)
        self.graph_lists = self.graphs

    def statistics(self) -> tuple[int, int, int]:
        return self.width, self.classes, max(g.num_nodes() for g in self.graphs)


# ---------------------------------------------------------------------- typed edges


class Packages:
    """``AIFBDataset``: packages of Debian with typed relations, to be told by their section."""

    predict_category = "package"

    def __init__(self) -> None:
        with np.load(_file("debian12_packages")) as file:
            relations, counts, label = pieces.relations_of_sections(
                file["triples"], file["relation_names"], file["node_section"], file["section_names"]
            )
        g = dgl.heterograph(
            {key: tuple(torch.from_numpy(ends)) for key, ends in relations.items()}, counts
        )
        draw = torch.rand(len(label), generator=torch.Generator().manual_seed(0))
        data = g.nodes[self.predict_category].data
        data["labels"] = torch.from_numpy(label)
        data["train_mask"], data["test_mask"] = draw < 0.5, draw >= 0.5
        self.graph, self.num_classes = g, int(label.max()) + 1

    def __getitem__(self, item: int) -> Any:
        return [self.graph][item]


def papers(url: str, filename: str) -> tuple[str, None]:
    """``urlretrieve`` of ACM.mat: Cora's papers, their most frequent words as subjects, and their
    other words in the place of authors."""
    import scipy.io

    with np.load(_file("cora")) as file:
        matrices = pieces.papers_and_words(
            file["edge_index"], file["x_indptr"], file["x_indices"], file["y"]
        )
    with tempfile.TemporaryDirectory(dir=Path(filename).parent) as folder:
        made = Path(folder) / "made.mat"
        scipy.io.savemat(made, matrices)
        made.replace(filename)  # at once: another process may be reading it
    return filename, None


class Trees:
    """``SSTDataset``: trees of hyponyms in WordNet; a node's class is its height, at most 4."""

    num_classes, vocab_size, pretrained_emb = 5, 64, None

    def __init__(self, mode: str = "train") -> None:
        with np.load(_file("wordnet30")) as file:
            forest = pieces.trees(file["triples"], file["relation_symbols"], count=240, seed=0)
        self.trees = []
        for parent, degree in forest[_TREES[mode]]:
            child = np.flatnonzero(parent >= 0)
            g = dgl.graph((child, parent[child]), num_nodes=len(parent))
            height = pieces.heights(parent)
            leaf = torch.from_numpy(height == 0)
            g.ndata["mask"] = leaf.long()
            word = torch.from_numpy(degree).clamp(max=self.vocab_size - 1)
            g.ndata["x"] = torch.where(leaf, word, -1)
            g.ndata["y"] = torch.from_numpy(height).clamp(max=self.num_classes - 1)
            self.trees.append(g)

    def __getitem__(self, item: int) -> Any:
        return self.trees[item]

    def __len__(self) -> int:
        return len(self.trees)


REPLACEMENTS: dict[str, Any] = {
    "dgl.data:CoraGraphDataset": Cora,
    "dgl.data:GINDataset": LabelledGraphs,
    "dgl.data:LegacyTUDataset": PooledGraphs,
    "dgl.data.rdf:AIFBDataset": Packages,
    "dgl.data.tree:SSTDataset": Trees,
    "urllib.request:urlretrieve": papers,
}


def put(names: tuple[str, ...]) -> None:
    """Put the datasets of these names, ``module:attribute``, in the place of DGL's own."""
    for name in names:
        module, attribute = name.split(":")
        setattr(importlib.import_module(module), attribute, REPLACEMENTS[name])

"""``RelGraphConv`` and ``HGTConv``: output and all gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
from dgl.nn.pytorch import HGTConv, RelGraphConv

from tests.adapters.dgl.aggregation import name
from tests.adapters.dgl.helpers import falls_back, make_graph
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import normal
from tests.adapters.relational import check, in_torch

__all__ = ["in_torch"]

TYPES = 4
RELATIONAL: dict[str, list[Any]] = {
    "graph": ["homogeneous", "batched", "block"],
    "idtype": [torch.int64, torch.int32],
    "sizes": [(6, 4), (4, 6), (4, 4)],
    "regularizer": [None, "basis", "bdd"],
    "bias": [True, False],
    "self_loop": [True, False],
    "layer_norm": [True, False],
    "activation": [None, torch.tanh],
    "dropout": [0.0, 0.4],
    "norm": [True, False],
    "types": ["sorted", "random"],
    "dtype": [torch.float32, torch.float64],
}
TRANSFORMER: dict[str, list[Any]] = {
    "graph": ["homogeneous", "batched", "block"],
    "idtype": [torch.int64, torch.int32],
    "in_size": [6, 8],
    "heads": [(4, 2), (8, 1), (3, 3)],
    "node_types": [1, 3],
    "dropout": [0.0, 0.4],
    "use_norm": [True, False],
    "presorted": [False],
    "dtype": [torch.float32, torch.float64],
}


def kinds(count: int, types: int, ascending: bool = False) -> torch.Tensor:
    """Types, of which the second to last does not occur where there are several."""
    found = torch.arange(count) * 7 % types
    found = torch.where(found == types - 2, 0, found) if types > 1 else found
    return found.sort().values if ascending else found


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("c", pairwise(RELATIONAL, lambda c: True), ids=name)
def test_rel_graph_conv(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    names = ("regularizer", "bias", "self_loop", "layer_norm", "activation", "dropout")
    options = {n: c[n] for n in names} | {"num_bases": 2 if c["regularizer"] else None}
    conv = RelGraphConv(*c["sizes"], TYPES, **options).to(c["dtype"])
    graph = make_graph(c["graph"], idtype=c["idtype"])
    count = graph.num_edges()
    x = normal(graph.num_src_nodes(), c["sizes"][0], dtype=c["dtype"])
    norm = (normal(count, 1, seed=4, dtype=c["dtype"]),) if c["norm"] else ()
    check("dgl", conv, graph, x, kinds(count, TYPES, c["types"] == "sorted"), *norm)


@pytest.mark.usefixtures("in_torch")
@pytest.mark.parametrize("c", pairwise(TRANSFORMER, lambda c: True), ids=name)
def test_hgt_conv(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    graph = make_graph(c["graph"], covered=True, idtype=c["idtype"])
    conv = HGTConv(
        c["in_size"], *c["heads"], c["node_types"], TYPES, dropout=c["dropout"],
        use_norm=c["use_norm"],
    ).to(c["dtype"])  # fmt: skip
    nodes = graph.num_src_nodes()
    x = normal(nodes, c["in_size"], dtype=c["dtype"])
    check("dgl", conv, graph, x, kinds(nodes, c["node_types"]), kinds(graph.num_edges(), TYPES))


def test_on_the_kernels_of_the_cpu() -> None:
    graph = make_graph("homogeneous")
    types = kinds(graph.num_edges(), TYPES)
    check("dgl", RelGraphConv(6, 4, TYPES), graph, normal(14, 6), types)


def test_falls_back() -> None:
    graph, x = make_graph("homogeneous"), normal(14, 6)
    types = kinds(graph.num_edges(), TYPES)
    with falls_back("empty"):
        none = graph.edge_subgraph([], relabel_nodes=False)
        RelGraphConv(6, 4, TYPES)(none, x, types[:0])
    conv = RelGraphConv(6, 4, TYPES)
    conv.linear_r.register_forward_hook(lambda *_: None)
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        conv(graph, x, types)
    # What it is made of is fused by itself.
    assert dict(profile.reasons) == {"parametrized": 1} and profile.accelerated == 1

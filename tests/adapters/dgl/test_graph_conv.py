"""``GraphConv`` and ``EdgeWeightNorm``: output and all gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.nn.pytorch import EdgeWeightNorm, GraphConv

from tests.adapters.dgl.aggregation import check, name
from tests.adapters.dgl.helpers import KINDS, falls_back, make_graph
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import normal

pytestmark = [pytest.mark.usefixtures("twin_aggregation"), pytest.mark.sampled(6)]

CHOICES: dict[str, list[Any]] = {
    "graph": list(KINDS),
    "idtype": [torch.int64, torch.int32],
    "feat": ["tensor", "pair"],
    "sizes": [(6, 3), (3, 6), (5, 2)],
    "norm": ["none", "left", "right", "both"],
    "weight": ["own", "given", "none"],
    "bias": [True, False],
    "edge_weight": [None, "flat", "column"],
    "activation": [None, torch.tanh],
    "allow_zero_in_degree": [True, False],
    "dims": [2, 3],
    "dtype": [torch.float32, torch.float64],
}


def allowed(c: dict[str, Any]) -> bool:
    return not (c["weight"] == "none" and c["bias"] and c["sizes"][0] != c["sizes"][1])


COMBINATIONS = pairwise(CHOICES, allowed)


def call(c: dict[str, Any]) -> tuple[Any, ...]:
    """The layer and its inputs."""
    torch.manual_seed(1)
    options = {n: c[n] for n in ("norm", "bias", "activation", "allow_zero_in_degree")}
    conv = GraphConv(*c["sizes"], weight=c["weight"] == "own", **options).to(c["dtype"])
    graph = make_graph(c["graph"], covered=not c["allow_zero_in_degree"], idtype=c["idtype"])
    middle = (2,) * (c["dims"] - 2)
    feat: Any = normal(graph.num_src_nodes(), *middle, c["sizes"][0], dtype=c["dtype"])
    if c["feat"] == "pair":
        feat = (feat, normal(graph.num_dst_nodes(), *middle, 4, seed=1, dtype=c["dtype"]))
    weight = normal(*c["sizes"], seed=2, dtype=c["dtype"]) if c["weight"] == "given" else None
    edge = None
    if c["edge_weight"]:
        shape = (graph.num_edges(), 1) if c["edge_weight"] == "column" else (graph.num_edges(),)
        edge = normal(*shape, seed=3, dtype=c["dtype"])
    return conv, graph, feat, weight, edge


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name)
def test_equals_stock(combination: dict[str, Any]) -> None:
    check(*call(combination))


def test_many_combinations() -> None:
    assert len(COMBINATIONS) >= 20


def test_zero_in_degree_gives_the_hosts_error() -> None:
    conv, graph = GraphConv(6, 3), make_graph("homogeneous")
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(dgl.DGLError, match="0-in-degree"):
        conv(graph, normal(14, 6))


@pytest.mark.parametrize("what", ["double layer", "wide edges", "weight twice"])
def test_what_stock_refuses(what: str) -> None:
    conv, graph, feat = GraphConv(6, 3), make_graph("homogeneous", covered=True), normal(14, 6)
    weight = edge_weight = None
    if what == "double layer":
        conv = conv.double()
    elif what == "wide edges":
        edge_weight = normal(graph.num_edges(), 4)
    else:
        weight = normal(6, 3)
    with pytest.raises(Exception) as stock:
        conv(graph, feat, weight, edge_weight)
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        with pytest.raises(stock.type) as ours:
            conv(graph, feat, weight, edge_weight)
        assert str(ours.value) == str(stock.value)
    assert profile.accelerated == 0


def test_falls_back() -> None:
    conv, none = GraphConv(6, 3, allow_zero_in_degree=True), dgl.graph(([], []), num_nodes=14)
    with falls_back("empty"):
        conv(none, normal(14, 6))
    graph = make_graph("homogeneous")
    with falls_back("input-form"):
        GraphConv(6, 3, weight=False, bias=False, allow_zero_in_degree=True)(graph, normal(14))
    with falls_back("autocast"), torch.autocast("cpu"):
        conv(graph, normal(14, 6))


def test_a_constant_factor_is_computed_once() -> None:
    from gnn_backend.adapters.dgl import graph_of

    graph, conv = make_graph("homogeneous"), GraphConv(6, 3, allow_zero_in_degree=True)
    with gnn_backend.enabled(mode="strict", hosts="dgl"), torch.inference_mode():
        conv(graph, normal(14, 6))
    kept = {k: v for k, v in graph_of(graph).plans.items() if "degree factors" in k}
    assert len(kept) == 2
    check(conv, graph, normal(14, 6))
    assert all(graph_of(graph).plans[key] is value for key, value in kept.items())


@pytest.mark.parametrize("kind", ["homogeneous", "batched", "block"])
@pytest.mark.parametrize("norm", ["both", "right"])
@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_edge_weight_norm(kind: str, norm: str, eps: float) -> None:
    graph = make_graph(kind)
    weight = normal(graph.num_edges(), dtype=torch.float64).abs() + 0.1
    check(EdgeWeightNorm(norm, eps), graph, weight)


def test_edge_weight_norm_of_weights_that_are_not_positive() -> None:
    graph = make_graph("homogeneous")
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(dgl.DGLError, match="Non-positive"):
        EdgeWeightNorm()(graph, torch.zeros(graph.num_edges()))
    with falls_back("no-operators"):
        EdgeWeightNorm("none")(graph, torch.zeros(graph.num_edges()))

"""``GINConv`` and ``GINEConv``: output and all gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
from dgl.nn.pytorch import GINConv, GINEConv

from tests.adapters.dgl.aggregation import check, fused, name
from tests.adapters.dgl.helpers import KINDS, falls_back, make_graph
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import normal

pytestmark = [pytest.mark.usefixtures("twin_aggregation"), pytest.mark.sampled(6)]


def linear(width: int) -> nn.Module:
    return nn.Linear(6, width)


def sequence(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 4))


def nothing(width: int) -> None:
    return None


def no_linear(width: int) -> nn.Module:
    return nn.Sequential(nn.Tanh(), nn.Linear(6, width))


CHOICES: dict[str, list[Any]] = {
    "graph": list(KINDS),
    "idtype": [torch.int64, torch.int32],
    "feat": ["tensor", "pair"],
    "apply_func": [linear, sequence, nothing, no_linear],
    "width": [2, 9],
    "aggregator_type": ["sum", "mean", "max"],
    "init_eps": [0, 0.3],
    "learn_eps": [True, False],
    "activation": [None, torch.tanh],
    "edge_weight": [None, "flat", "column"],
    "dims": [2, 3],
    "dtype": [torch.float32, torch.float64],
}


def allowed(c: dict[str, Any]) -> bool:
    return c["feat"] == "pair" or c["graph"] != "slice"


COMBINATIONS = pairwise(CHOICES, allowed)


def features(graph: Any, kind: str, *tail: int, dtype: torch.dtype = torch.float32) -> Any:
    feat = normal(graph.num_src_nodes(), *tail, dtype=dtype)
    if kind == "tensor":
        return feat
    return feat, normal(graph.num_dst_nodes(), *tail, seed=1, dtype=dtype)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name)
def test_equals_stock(combination: dict[str, Any]) -> None:
    c = combination
    torch.manual_seed(1)
    options = {n: c[n] for n in ("aggregator_type", "init_eps", "learn_eps", "activation")}
    conv = GINConv(c["apply_func"](c["width"]), **options).to(c["dtype"])
    graph = make_graph(c["graph"], idtype=c["idtype"])
    edge = None
    if c["edge_weight"]:
        shape = (graph.num_edges(), 1) if c["edge_weight"] == "column" else (graph.num_edges(),)
        edge = normal(*shape, seed=3, dtype=c["dtype"])
    tail = (6,) if c["dims"] == 2 else (2, 6)
    check(conv, graph, features(graph, c["feat"], *tail, dtype=c["dtype"]), edge)


def test_many_combinations() -> None:
    assert len(COMBINATIONS) >= 20


@pytest.mark.parametrize("part", ["network", "first map"])
def test_a_watched_network_is_called(part: str) -> None:
    """A hook sees what it sees in stock."""
    seen: list[torch.Tensor] = []
    network = sequence(2)
    watched = network if part == "network" else network.get_submodule("0")
    watched.register_forward_hook(lambda m, args, out: seen.append(args[0].detach()))
    conv, graph = GINConv(network), make_graph("homogeneous")
    conv(graph, normal(14, 6))
    with fused():
        conv(graph, normal(14, 6))
    assert torch.allclose(*seen, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edge", ["wide", "column"])
@pytest.mark.parametrize("learn_eps", [True, False])
def test_gine_equals_stock(kind: str, edge: str, learn_eps: bool) -> None:
    torch.manual_seed(1)
    graph = make_graph(kind)
    conv = GINEConv(linear(3), init_eps=0.2, learn_eps=learn_eps)
    given = normal(graph.num_edges(), 6 if edge == "wide" else 1, seed=5)
    pair = "pair" if kind in ("slice", "block") else "tensor"
    check(conv, graph, features(graph, pair, 6), given)


def test_gine_refuses_what_stock_refuses() -> None:
    graph = make_graph("homogeneous")
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(RuntimeError, match="size of tensor"):
        GINEConv()(graph, normal(14, 6), normal(graph.num_edges()))


def test_gine_with_a_message_of_its_own() -> None:
    class Own(GINEConv):
        def message(self, edges: Any) -> Any:
            return {"m": edges.src["hn"] * edges.data["he"]}

    conv, graph = Own(), make_graph("homogeneous")
    inputs = (graph, normal(14, 6), normal(graph.num_edges(), 6))
    want = conv(*inputs)
    with falls_back("overridden-message"):
        assert torch.equal(conv(*inputs), want)

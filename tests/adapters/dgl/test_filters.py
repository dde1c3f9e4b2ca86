"""``TAGConv``, ``SGConv``, ``APPNPConv`` and ``ChebConv``: output and all gradients as stock."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.nn.pytorch import APPNPConv, ChebConv, SGConv, TAGConv

from tests.adapters.dgl.aggregation import check, fused, name
from tests.adapters.dgl.helpers import falls_back, make_graph
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import normal

pytestmark = [pytest.mark.usefixtures("twin_aggregation"), pytest.mark.sampled(6)]

COMMON: dict[str, list[Any]] = {
    "graph": ["homogeneous", "batched"],
    "idtype": [torch.int64, torch.int32],
    "sizes": [(7, 2), (3, 6)],
    "k": [1, 2, 3, 4],
    "weighted": [False, True],
    "dtype": [torch.float32, torch.float64],
}


def inputs(c: dict[str, Any], *, covered: bool = False) -> tuple[Any, Any, Any]:
    """Graph, features and weights of a combination."""
    graph = make_graph(c["graph"], covered=covered, idtype=c["idtype"])
    middle = (2,) * (c.get("dims", 2) - 2)
    feat = normal(graph.num_nodes(), *middle, c["sizes"][0], dtype=c["dtype"])
    weight = None
    if c["weighted"]:
        weight = normal(graph.num_edges(), seed=3, dtype=c["dtype"]).abs() + 0.2
    return graph, feat, weight


TAG = pairwise(
    COMMON | {"bias": [True, False], "activation": [None, torch.tanh], "dims": [2, 3]},
    lambda c: not (c["dims"] == 3 and c["weighted"]),
)
SG = pairwise(
    COMMON | {"bias": [True, False], "norm": [None, nn.Tanh()], "cached": [False, True],
              "allow_zero_in_degree": [True, False]},
    lambda c: True,
)  # fmt: skip
APPNP = pairwise(
    COMMON | {"alpha": [0.1, 0.5], "edge_drop": [0.0, 0.4]},
    lambda c: c["weighted"] or c["dtype"] == torch.float32,
)
CHEB = pairwise(
    {n: v for n, v in COMMON.items() if n not in ("k", "weighted")}
    | {"k": [2, 3, 4, 5], "bias": [True, False], "activation": [None, torch.tanh],
       "lambda_max": [None, "list", "tensor", "column"]},
    lambda c: True,
)  # fmt: skip


@pytest.mark.parametrize("c", TAG, ids=name)
def test_tag(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    conv = TAGConv(*c["sizes"], c["k"], c["bias"], c["activation"]).to(c["dtype"])
    check(conv, *inputs(c))


@pytest.mark.parametrize("c", SG, ids=name)
def test_sg(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    options = {n: c[n] for n in ("k", "bias", "norm", "cached", "allow_zero_in_degree")}
    conv = SGConv(*c["sizes"], **options).to(c["dtype"])
    given = inputs(c, covered=not c["allow_zero_in_degree"])
    if not c["cached"]:
        check(conv, *given)
        return
    stock = copy.deepcopy(conv)
    want = stock(*given)
    with fused():
        got = conv(*given)
    for a, b in ((got, want), (conv._cached_h, stock._cached_h)):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    with falls_back("no-operators"):
        assert torch.allclose(conv(*given[:2]), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("c", APPNP, ids=name)
def test_appnp(c: dict[str, Any]) -> None:
    check(APPNPConv(c["k"], c["alpha"], c["edge_drop"]), *inputs(c))


@pytest.mark.parametrize("c", CHEB, ids=name)
def test_cheb(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    conv = ChebConv(*c["sizes"], c["k"], c["activation"], c["bias"]).to(c["dtype"])
    graph, feat, _ = inputs(c | {"weighted": False})
    bounds = torch.linspace(1.5, 2.5, graph.batch_size, dtype=c["dtype"])
    given: Any = {
        "list": bounds.tolist(), "tensor": bounds, "column": bounds.view(-1, 1), None: None
    }[c["lambda_max"]]  # fmt: skip
    check(conv, graph, feat, given)


def test_many_combinations() -> None:
    assert min(map(len, (TAG, SG, APPNP, CHEB))) >= 10


@pytest.mark.parametrize("make", [TAGConv, SGConv, lambda i, o: APPNPConv(2, 0.1)])
def test_weights_that_are_not_positive(make: Any) -> None:
    graph, conv = make_graph("homogeneous", covered=True), make(6, 3)
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(dgl.DGLError, match="Non-positive"):
        conv(graph, normal(14, 6), torch.zeros(graph.num_edges()))


def test_a_block_gives_the_hosts_error() -> None:
    conv, graph = TAGConv(6, 3), make_graph("block")
    with pytest.raises(Exception) as stock:
        conv(graph, normal(14, 6))
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(stock.type):
        conv(graph, normal(14, 6))


def test_default_eigenvalues_are_warned_about() -> None:
    conv, graph = ChebConv(6, 3, 3), make_graph("homogeneous")
    with fused(), pytest.warns(UserWarning, match="lambda_max"):
        conv(graph, normal(14, 6))


def test_a_watched_edge_dropout_is_called() -> None:
    conv, graph = APPNPConv(2, 0.1, 0.5), make_graph("homogeneous")
    conv.edge_drop.register_forward_hook(lambda *_: None)
    with falls_back("hooks"):
        conv(graph, normal(14, 6))

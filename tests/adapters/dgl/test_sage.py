"""``SAGEConv``: output and all gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
from dgl.nn.pytorch import SAGEConv

from tests.adapters.dgl.aggregation import check, name
from tests.adapters.dgl.helpers import KINDS, falls_back, make_graph
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import normal

pytestmark = [pytest.mark.usefixtures("twin_aggregation"), pytest.mark.sampled(6)]

CHOICES: dict[str, list[Any]] = {
    "graph": list(KINDS),
    "idtype": [torch.int64, torch.int32],
    "feat": ["tensor", "pair"],
    "sizes": [(6, 2), (3, 6), "unequal"],
    "aggregator_type": ["mean", "gcn", "pool"],
    "feat_drop": [0.0, 0.5],
    "bias": [True, False],
    "norm": [None, torch.nn.functional.normalize],
    "activation": [None, torch.tanh],
    "edge_weight": [None, "flat", "column"],
    "dims": [2, 3],
    "dtype": [torch.float32, torch.float64],
}


def allowed(c: dict[str, Any]) -> bool:
    gcn, pair = c["aggregator_type"] == "gcn", c["feat"] == "pair"
    if gcn and (c["dims"] == 3 or c["sizes"] == "unequal"):
        return False
    if gcn and pair and c["graph"] in ("homogeneous", "batched", "square-slice"):
        return False  # see test_pair_in_one_frame
    return pair or not (c["sizes"] == "unequal" or c["graph"] == "slice")


COMBINATIONS = pairwise(CHOICES, allowed)


def call(c: dict[str, Any]) -> tuple[Any, ...]:
    """The layer and its inputs."""
    torch.manual_seed(1)
    (wide, narrow), out = (c["sizes"][:1] * 2, c["sizes"][1]) if c["sizes"] != "unequal" else (
        (5, 4), 3)  # fmt: skip
    options = {n: c[n] for n in ("aggregator_type", "feat_drop", "bias", "norm", "activation")}
    size = (wide, narrow) if c["sizes"] == "unequal" else wide
    conv = SAGEConv(size, out, **options).to(c["dtype"])
    graph = make_graph(c["graph"], idtype=c["idtype"])
    middle = (2,) * (c["dims"] - 2)
    feat: Any = normal(graph.num_src_nodes(), *middle, wide, dtype=c["dtype"])
    if c["feat"] == "pair":
        feat = (feat, normal(graph.num_dst_nodes(), *middle, narrow, seed=1, dtype=c["dtype"]))
    edge = None
    if c["edge_weight"]:
        shape = (graph.num_edges(), 1) if c["edge_weight"] == "column" else (graph.num_edges(),)
        edge = normal(*shape, seed=3, dtype=c["dtype"])
    return conv, graph, feat, edge


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name)
def test_equals_stock(combination: dict[str, Any]) -> None:
    check(*call(combination))


def test_many_combinations() -> None:
    assert len(COMBINATIONS) >= 15


def test_lstm_falls_back() -> None:
    conv, graph = SAGEConv(6, 3, "lstm"), make_graph("homogeneous", covered=True)
    want = conv(graph, normal(14, 6))
    with falls_back("aggregation"):
        assert torch.equal(conv(graph, normal(14, 6)), want)


def test_pair_in_one_frame() -> None:
    """Of a homogeneous graph the destinations' features take the place of the sources'."""
    conv, graph = SAGEConv(6, 3, "gcn"), make_graph("homogeneous")
    feat = (normal(14, 6), normal(14, 6, seed=1))
    want = conv(graph, feat)
    with falls_back("input-form"):
        assert torch.equal(conv(graph, feat), want)


def test_maxima_that_are_equal_or_no_number() -> None:
    """The first of equal neighbours gets the gradient, and a NaN is never the largest."""
    conv, graph = SAGEConv(4, 3, "pool").double(), make_graph("homogeneous")
    feat = normal(14, 4, dtype=torch.float64)
    feat[3] = feat[5]
    feat[7] = -1e3  # relu makes these rows equal, too
    check(conv, graph, feat)
    feat[2, 1] = float("nan")
    want = conv(graph, feat)
    with gnn_backend.enabled(mode="strict", hosts="dgl"):
        got = conv(graph, feat)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.allclose(got, want, equal_nan=True)

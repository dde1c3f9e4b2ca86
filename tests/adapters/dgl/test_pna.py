"""``PNAConv``: output and all gradients as stock."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

pytest.importorskip("dgl", reason="DGL is not installed")
from dgl.nn.pytorch import PNAConv

from tests.adapters.dgl.aggregation import but_for_cancellation, check, fused, name
from tests.adapters.dgl.helpers import falls_back, make_graph
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import normal

pytestmark = [pytest.mark.usefixtures("twin_aggregation"), pytest.mark.sampled(6)]

CHOICES: dict[str, list[Any]] = {
    "graph": ["homogeneous", "batched"],
    "covered": [True, False],
    "idtype": [torch.int64, torch.int32],
    "sizes": [(6, 4), (6, 6)],
    "aggregators": [["mean", "max", "min", "std"], ["sum"], ["var", "max"], ["std", "sum", "mean"]],
    "scalers": [["identity", "amplification", "attenuation"], ["identity"], ["attenuation"]],
    "delta": [2.5, 1],
    "dropout": [0.0, 0.5],
    "num_towers": [1, 2],
    "edge_feat_size": [0, 3],
    "residual": [True, False],
}


def name_of(c: dict[str, Any]) -> str:
    return name({n: "+".join(v) if isinstance(v, list) else v for n, v in c.items()})


COMBINATIONS = pairwise(CHOICES, lambda c: True)


def call(c: dict[str, Any], dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    torch.manual_seed(1)
    named = ("delta", "dropout", "num_towers", "edge_feat_size", "residual")
    options = {n: c[n] for n in named}
    conv = PNAConv(*c["sizes"], c["aggregators"], c["scalers"], **options).to(dtype)
    graph = make_graph(c["graph"], covered=c["covered"], idtype=c["idtype"])
    edge = normal(graph.num_edges(), 3, seed=3, dtype=dtype) if c["edge_feat_size"] else None
    return conv, graph, normal(graph.num_nodes(), 6, dtype=dtype), edge


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
def test_equals_stock(combination: dict[str, Any]) -> None:
    """In float64: a variance is a difference, whose rounding errors a root enlarges."""
    check(*call(combination), equal=but_for_cancellation)


def test_many_combinations() -> None:
    assert len(COMBINATIONS) >= 12


def test_float32() -> None:
    some = {"aggregators": ["mean", "max", "min", "sum"], "edge_feat_size": 0}
    conv, graph, feat, _ = call(COMBINATIONS[0] | some, torch.float32)
    check(conv, graph, feat, equal=but_for_cancellation)


def test_statistics_of_the_batch_are_kept_as_in_stock() -> None:
    conv, *inputs = call(COMBINATIONS[0])
    stock = copy.deepcopy(conv)
    torch.manual_seed(2)
    stock(*inputs)
    torch.manual_seed(2)
    with fused():
        conv(*inputs)
    for (key, ours), theirs in zip(conv.named_buffers(), stock.buffers(), strict=True):
        assert torch.allclose(ours, theirs), key


def test_falls_back() -> None:
    graph, feat = make_graph("homogeneous", covered=True), normal(14, 6)
    with falls_back("aggregation"):
        PNAConv(6, 4, ["mean", "moment3"], ["identity"], 2.5)(graph, feat)
    conv = PNAConv(6, 4, ["mean"], ["identity"], 2.5)
    conv.towers[0].M.register_forward_hook(lambda *_: None)
    with falls_back("hooks"):
        conv(graph, feat)

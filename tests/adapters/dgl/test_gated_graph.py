"""``GatedGraphConv``: output and all gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
from dgl.nn.pytorch import GatedGraphConv

from gnn_backend.adapters.dgl import graph_of
from tests.adapters.dgl.aggregation import check, fused, name
from tests.adapters.dgl.helpers import falls_back, make_graph
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import normal

pytestmark = pytest.mark.usefixtures("twin_aggregation")

CHOICES: dict[str, list[Any]] = {
    "graph": ["homogeneous", "batched"],
    "idtype": [torch.int64, torch.int32],
    "sizes": [(3, 5), (4, 4)],
    "n_steps": [1, 3],
    "n_etypes": [1, 2, 4],
    "bias": [True, False],
    "types": [torch.int64, torch.int32],
    "dtype": [torch.float32, torch.float64],
}
COMBINATIONS = pairwise(CHOICES, lambda c: True)


def types_of(graph: Any, count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Types of edges, of which the second to last does not occur."""
    types = torch.arange(graph.num_edges()) * 7 % count
    return torch.where(types == count - 2, 0, types).to(dtype)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name)
def test_equals_stock(combination: dict[str, Any]) -> None:
    c = combination
    torch.manual_seed(1)
    conv = GatedGraphConv(*c["sizes"], c["n_steps"], c["n_etypes"], c["bias"]).to(c["dtype"])
    graph = make_graph(c["graph"], idtype=c["idtype"])
    types = None if c["n_etypes"] == 1 else types_of(graph, c["n_etypes"], c["types"])
    check(conv, graph, normal(graph.num_nodes(), c["sizes"][0], dtype=c["dtype"]), types)


def test_many_combinations() -> None:
    assert len(COMBINATIONS) >= 8


def test_split_sources_are_kept_until_the_types_change() -> None:
    conv, graph, feat = GatedGraphConv(3, 5, 2, 3), make_graph("homogeneous"), normal(14, 3)
    types = types_of(graph, 3)
    with fused(calls=2):
        conv(graph, feat, types)
        kept = graph_of(graph).plans["typed sources"]
        conv(graph, feat, types)
    assert graph_of(graph).plans["typed sources"] is kept
    types[:9] = 2
    check(conv, graph, feat, types)


def test_falls_back() -> None:
    graph, feat = make_graph("homogeneous"), normal(14, 3)
    with falls_back("edge-types"):
        GatedGraphConv(3, 5, 2, 40)(graph, feat, types_of(graph, 40))
    with falls_back("input-form"):
        GatedGraphConv(3, 5, 2, 1)(graph, feat, types_of(graph, 1).clamp(0, 0))
    conv = GatedGraphConv(3, 5, 2, 2)
    conv.linears[1].register_forward_hook(lambda *_: None)
    with falls_back("parametrized"):
        conv(graph, feat, types_of(graph, 2))


def test_types_out_of_range_give_the_hosts_error() -> None:
    graph, conv = make_graph("homogeneous"), GatedGraphConv(3, 5, 2, 2)
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(AssertionError, match="out of range"):
        conv(graph, normal(14, 3), torch.full((graph.num_edges(),), 2))

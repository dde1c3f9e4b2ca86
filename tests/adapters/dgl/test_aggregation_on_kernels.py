"""Every aggregating layer on the kernels of each target: output and all gradients as stock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("dgl", reason="DGL is not installed")
from dgl.nn import pytorch as layers

from gnn_backend import config
from gnn_backend.adapters.dgl import cheb, filters
from gnn_backend.adapters.dgl.aggregating import engine_reason
from tests.adapters.dgl.aggregation import but_for_cancellation, fused
from tests.adapters.dgl.helpers import falls_back, make_graph
from tests.adapters.pyg.helpers import gradients, normal

REDUCTIONS = ["mean", "max", "min", "var", "sum"]
SCALERS = ["identity", "amplification"]
Make = Callable[[], nn.Module]


def weight(count: int) -> Tensor:
    return normal(count, seed=3).abs() + 0.1


def types(count: int) -> Tensor:
    return torch.arange(count) % 2


def wide(count: int) -> Tensor:
    return normal(count, 6, seed=4)


CALLS: dict[str, tuple[Make, Callable[[int], Tensor] | None]] = {
    "GraphConv": (lambda: layers.GraphConv(6, 3), None),
    "SAGEConv gcn": (lambda: layers.SAGEConv(6, 8, "gcn"), weight),
    "SAGEConv mean": (lambda: layers.SAGEConv(6, 2, "mean"), None),
    "SAGEConv pool": (lambda: layers.SAGEConv(6, 3, "pool"), None),
    "GINConv": (lambda: layers.GINConv(nn.Linear(6, 2), learn_eps=True), weight),
    "GINConv max": (lambda: layers.GINConv(nn.Linear(6, 2), "max"), weight),
    "GINEConv": (lambda: layers.GINEConv(nn.Linear(6, 2)), wide),
    "TAGConv": (lambda: layers.TAGConv(6, 2), weight),
    "SGConv": (lambda: layers.SGConv(6, 8, 2), None),
    "APPNPConv": (lambda: layers.APPNPConv(2, 0.1, 0.4), None),
    "ChebConv": (lambda: layers.ChebConv(6, 2, 3), lambda _: torch.tensor([2.1])),
    "PNAConv": (lambda: layers.PNAConv(6, 4, REDUCTIONS, SCALERS, 2.5, num_towers=2), None),
    "PNAConv with edges": (
        lambda: layers.PNAConv(6, 4, REDUCTIONS, SCALERS, 2.5, edge_feat_size=6), wide),
    "GatedGraphConv": (lambda: layers.GatedGraphConv(6, 7, 2, 2), types),
}  # fmt: skip


#: What DGL's own operators are no slower at on the CPU.
PLAIN_SUMS = {"GraphConv", "SAGEConv mean", "SGConv", "ChebConv"}


@pytest.mark.parametrize("target", ["numba", "emulator"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.sampled(3)
def test_equals_stock(call: str, target: str) -> None:
    make, edge = CALLS[call]
    torch.manual_seed(1)
    conv, graph = make(), make_graph("homogeneous", covered=True)
    inputs: tuple[Any, ...] = (graph, normal(14, 6))
    if edge is not None:
        inputs += (edge(graph.num_edges()),)
    want = gradients(conv, *inputs)
    with config.override(cpu_target=target):
        reason = engine_reason(inputs[1])
        if reason is not None:
            pytest.skip(f"nothing aggregates there: {reason}")
        if target == "numba" and call in PLAIN_SUMS:
            with falls_back("cpu-sums"):
                conv(*inputs)
            return
        with fused() as profile:
            got = gradients(conv, *inputs)
    assert sum(profile.launches.values()) >= 2, "no kernel was launched forward and backward"
    but_for_cancellation(got, want)


def test_weights_of_edges() -> None:
    norm, graph = layers.EdgeWeightNorm(), make_graph("homogeneous")
    want = gradients(norm, graph, weight(graph.num_edges()))
    with config.override(cpu_target="emulator"), fused():
        but_for_cancellation(gradients(norm, graph, weight(graph.num_edges())), want)


def test_where_nothing_aggregates_stock_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain torch would be slower than DGL's own operators."""
    from gnn_backend.adapters.dgl import aggregating
    from gnn_backend.errors import Unsupported

    def none(*_: Any) -> None:
        raise Unsupported("cpu-operators")

    monkeypatch.setattr(aggregating, "aggregation_engine", none)
    conv, graph = layers.GraphConv(6, 3), make_graph("homogeneous", covered=True)
    want = conv(graph, normal(14, 6))
    with falls_back("cpu-operators"):
        assert torch.equal(conv(graph, normal(14, 6)), want)


def test_where_sums_pay_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a map first makes them far narrower, or stock multiplies with ones."""
    from gnn_backend.adapters.dgl import aggregating

    monkeypatch.setattr(aggregating, "aggregation_engine", lambda *_: None)
    graph, feat = make_graph("homogeneous", covered=True), normal(14, 8)
    with config.override(cpu_target="numba"):
        for width, reason in ((2, None), (3, "cpu-sums")):
            assert filters.tag_eligible(layers.TAGConv(8, width), graph, feat) == reason
            assert filters.sg_eligible(layers.SGConv(8, width), graph, feat) == reason
            assert cheb.eligible(layers.ChebConv(8, width, 3), graph, feat) == reason
        assert filters.appnp_eligible(layers.APPNPConv(2, 0.1), graph, feat) is None

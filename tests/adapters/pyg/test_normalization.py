"""Normalised adjacencies of PyG's layers: node tables are multiplied, not edges."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from gnn_backend.layers import scaled_adjacency

pytest.importorskip("torch_geometric")
import torch_geometric.nn as nn

from tests.adapters.attention import check_equals_stock
from tests.adapters.pyg.helpers import edges, normal

N, WIDTH = 12, 6
FLOWS = ("source_to_target", "target_to_source")
WITH_LOOPS = edges(N, N)
LOOP_FREE = WITH_LOOPS[:, WITH_LOOPS[0] != WITH_LOOPS[1]]
X = normal(N, WIDTH)

pytestmark = pytest.mark.usefixtures("twin_aggregation")


@pytest.fixture
def factors(monkeypatch: pytest.MonkeyPatch) -> list[Tensor | None]:
    """What each aggregation multiplies messages with."""
    seen: list[Tensor | None] = []
    real = scaled_adjacency.aggregate

    def recording(*args: Any, edge: Tensor | None = None, **kwargs: Any) -> Any:
        seen.append(edge)
        return real(*args, edge=edge, **kwargs)

    monkeypatch.setattr(scaled_adjacency, "aggregate", recording)
    return seen


def strict() -> Any:
    return gnn_backend.enabled(mode="strict", hosts="pyg")


LAYERS = {
    "GCNConv": lambda **o: nn.GCNConv(WIDTH, 4, **o),
    "SGConv": lambda **o: nn.SGConv(WIDTH, 4, K=2, **o),
    "TAGConv": lambda **o: nn.TAGConv(WIDTH, 4, K=2, **o),
    "APPNP": lambda **o: nn.APPNP(K=2, alpha=0.1, **o),
    "ARMAConv": lambda **o: nn.ARMAConv(WIDTH, 4, **o),
    "ClusterGCNConv": lambda **o: nn.ClusterGCNConv(WIDTH, 4, **o),
    "ChebConv": lambda **o: nn.ChebConv(WIDTH, 4, K=3, **o),
}


@pytest.mark.parametrize("name", LAYERS)
def test_without_weights_nothing_is_edge_wise(name: str, factors: list[Tensor | None]) -> None:
    with strict():
        LAYERS[name]()(X, LOOP_FREE)
    assert factors and factors == [None] * len(factors)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("name", LAYERS)
def test_edges_without_self_loops(name: str, flow: str) -> None:
    torch.manual_seed(0)
    check_equals_stock(LAYERS[name](flow=flow), "pyg", X, LOOP_FREE)


@pytest.mark.parametrize("lambda_max", [None, 1.5])
@pytest.mark.parametrize("out", [2, 9])
@pytest.mark.parametrize("terms", [2, 4])
def test_chebyshev_in_either_order(lambda_max: float | None, out: int, terms: int) -> None:
    torch.manual_seed(0)
    conv = nn.ChebConv(WIDTH, out, K=terms)
    check_equals_stock(conv, "pyg", X, LOOP_FREE, lambda_max=lambda_max)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("edge_index", [WITH_LOOPS, LOOP_FREE])
@pytest.mark.parametrize("improved", [False, True])
def test_weights(learned: bool, edge_index: Tensor, improved: bool) -> None:
    torch.manual_seed(0)
    weight = normal(edge_index.shape[1], seed=2).abs()
    conv = nn.GCNConv(WIDTH, 4, improved=improved)
    constant = () if learned else ("edge_weight",)
    check_equals_stock(conv, "pyg", X, edge_index, edge_weight=weight, constant=constant)


def test_weights_that_add_up_to_nothing() -> None:
    weight = torch.ones(LOOP_FREE.shape[1])
    weight[LOOP_FREE[1] == int(LOOP_FREE[1][0])] = 0.0
    conv = nn.GCNConv(WIDTH, 4, add_self_loops=False)
    check_equals_stock(conv, "pyg", X, LOOP_FREE, edge_weight=weight, constant=("edge_weight",))


def test_extremes_take_weights_of_edges(factors: list[Tensor | None]) -> None:
    torch.manual_seed(0)
    check_equals_stock(nn.GCNConv(WIDTH, 4, aggr="max"), "pyg", X, WITH_LOOPS)
    assert factors == []


def test_the_sum_of_a_hub_does_not_overflow() -> None:
    """In float16 150 messages of 1000 are too many, divided by the root of 151 they are not."""
    hub = torch.stack([torch.arange(1, 151), torch.zeros(150, dtype=torch.long)])
    conv = nn.GCNConv(1, 1, bias=False).half()
    with torch.no_grad():
        conv.lin.weight.fill_(1.0)
    x = torch.full((151, 1), 1000.0, dtype=torch.float16)
    want = conv(x, hub)
    with strict():
        got = conv(x, hub)
    assert bool(want.isfinite().all())
    torch.testing.assert_close(got, want, rtol=4e-3, atol=0)


def test_kept_factors_do_not_keep_weights() -> None:
    conv = nn.GCNConv(WIDTH, 4, add_self_loops=False)
    by_target = LOOP_FREE[:, LOOP_FREE[1].argsort(stable=True)]  # nothing to put in order
    for edge_index in (LOOP_FREE, by_target):
        weight = torch.ones(edge_index.shape[1])
        with strict():
            first, second = conv(X, edge_index, weight), conv(X, edge_index, weight)
        assert torch.equal(first, second)
        freed = weakref.ref(weight)
        del weight
        gc.collect()
        assert freed() is None


def test_kept_edges_of_a_cached_layer_serve_stock() -> None:
    """What an accelerated call caches is what stock would, so that either may go on with it."""
    conv = nn.GCNConv(WIDTH, 4, cached=True)
    with strict():
        got = conv(X, WITH_LOOPS)
    kept, weight = conv._cached_edge_index
    assert kept.shape[1] == weight.numel()
    torch.testing.assert_close(conv(X, LOOP_FREE), got, rtol=1e-5, atol=1e-6)

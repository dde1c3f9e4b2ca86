"""Models made by ``to_hetero``: results and all gradients as stock, a layer's relations at once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gnn_backend
from gnn_backend import config

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATConv, GCNConv, GraphConv, Linear, SAGEConv, to_hetero

from gnn_backend.adapters.pyg.relation_layers import RelationLayers
from tests.adapters.attention import check_equals_stock
from tests.adapters.hetero import SIZES, Wrapped, operations, randomized, relations
from tests.adapters.pyg.helpers import normal

WIDTH = 6
Make = Callable[[], nn.Module]
CONVS: dict[str, Make] = {
    "SAGEConv": lambda: SAGEConv((-1, -1), 4),
    "SAGEConv max": lambda: SAGEConv((WIDTH, WIDTH), 4, aggr="max"),
    "GraphConv": lambda: GraphConv(WIDTH, 4),
    "GATConv": lambda: GATConv((-1, -1), 4, 2, add_self_loops=False),
    "GCNConv": lambda: GCNConv(WIDTH, 4, add_self_loops=False),
}


class Twice(nn.Module):
    """A convolution of both ends of its edges, called twice, and dense layers."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([make()])
        self.dense = Linear(-1, WIDTH)
        self.skip = Linear(WIDTH, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.dense(self.blocks[0](x, edge_index).relu())
        return self.dense(self.blocks[0](h, edge_index)) + self.skip(x).sum(1, keepdim=True)


class Once(nn.Module):
    def __init__(self, make: Make) -> None:
        super().__init__()
        self.conv = make()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)  # type: ignore[no-any-return]


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GraphConv(WIDTH, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_weight)  # type: ignore[no-any-return]


def features(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [normal(n, WIDTH, seed=i, dtype=dtype) for i, n in enumerate(SIZES.values())]


def made(model: nn.Module, aggr: str, count: int = 6, *, enabled: bool = True) -> Wrapped:
    """What ``to_hetero`` makes of a model, its widths known."""
    edges = dict(relations(count, square=isinstance(getattr(model, "conv", None), GCNConv)))
    with gnn_backend.enabled(hosts="pyg") if enabled else gnn_backend.disabled():
        hetero = to_hetero(model, ([*SIZES], [*edges]), aggr)

    def call(hetero: nn.Module, given: list[Tensor]) -> dict[str, Tensor]:
        return hetero(dict(zip(SIZES, given, strict=True)), edges)  # type: ignore[no-any-return]

    wrapped = Wrapped(hetero, call)
    with torch.no_grad():
        wrapped(*features())
    randomized(wrapped)
    return wrapped


@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
@pytest.mark.parametrize(
    ("conv", "aggr", "dtype"),
    [
        ("SAGEConv", "sum", torch.float32),
        ("SAGEConv max", "mean", torch.float64),
        ("GraphConv", "max", torch.float32),
        ("GraphConv", "mul", torch.float64),
        ("GATConv", "mean", torch.float32),
        ("GATConv", "min", torch.float64),
        ("GCNConv", "sum", torch.float32),
    ],
)
def test_equals_stock(conv: str, aggr: str, dtype: torch.dtype) -> None:
    module = made(Once(CONVS[conv]), aggr).to(dtype)
    check_equals_stock(module, "pyg", *features(dtype))


@pytest.mark.parametrize("conv", ["SAGEConv", "GATConv"])
def test_equals_stock_on_kernels(conv: str) -> None:
    check_equals_stock(made(Once(CONVS[conv]), "mean", 4), "pyg", *features())


def test_equals_stock_on_the_emulator() -> None:
    module = made(Once(CONVS["SAGEConv"]), "sum", 3)
    with config.override(cpu_target="emulator"):
        check_equals_stock(module, "pyg", *features())


@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
def test_the_program_is_stocks_while_disabled(aggr: str) -> None:
    ours, theirs = (made(Twice(CONVS["SAGEConv"]), aggr, enabled=e) for e in (True, False))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    assert isinstance(ours.wrapper.blocks[0], RelationLayers)
    assert not isinstance(theirs.wrapper.blocks[0], RelationLayers)
    want, plain = theirs(*features()), ours(*features())
    assert all(map(torch.equal, plain, want))
    with gnn_backend.enabled(hosts="pyg", mode="strict"), gnn_backend.profile() as profile:
        got = ours(*features())
    assert profile.accelerated == 2
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
@pytest.mark.parametrize("conv", ["SAGEConv", "GATConv"])
def test_models_made_before_are_fused_layer_by_layer(conv: str) -> None:
    module = made(Once(CONVS[conv]), "sum", 4, enabled=False)
    want = module(*features())
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        got = module(*features())
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert profile.accelerated == 4 and dict(profile.reasons) == {}


@pytest.mark.usefixtures("twin_aggregation")
def test_copies_and_pickles_run_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Once.forward, "__annotations__", {})  # which torch.fx pickles as no text
    hetero = made(Once(CONVS["SAGEConv"]), "sum").wrapper
    edges, x = dict(relations(6)), dict(zip(SIZES, features(), strict=True))
    want = hetero(x, edges)
    for other in (copy.deepcopy(hetero), pickle.loads(pickle.dumps(hetero))):
        with gnn_backend.enabled(hosts="pyg", mode="verify"), gnn_backend.profile() as profile:
            got = other(x, edges)
        assert profile.accelerated == 1
        torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("twin_aggregation")
def test_what_falls_back() -> None:
    edges, x = dict(relations(4)), dict(zip(SIZES, features(), strict=True))
    weights = {k: torch.rand(e.shape[1]) for k, e in edges.items()}
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        weighted = to_hetero(Weighted(), ([*SIZES], [*edges]))
        got = weighted(x, edges, weights)
        to_hetero(Once(CONVS["SAGEConv"]), ([*SIZES], [*edges]))(x, edges)
    assert profile.reasons["relation-arguments"] == 1
    assert profile.reasons["lazy"] == 1
    torch.testing.assert_close(got, weighted(x, edges, weights))


@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
@pytest.mark.parametrize("conv", ["SAGEConv", "GATConv"])
def test_operations_do_not_grow_with_relations(conv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for number in (4, 40):
        module, given = made(Once(CONVS[conv]), "sum", number), features()
        parameters = [*module.parameters()]

        def step(module: Any = module, given: Any = given, of: Any = parameters) -> None:
            torch.autograd.grad(sum(out.sum() for out in module(*given)), of)

        with gnn_backend.enabled(hosts="pyg", mode="strict"):
            step()  # what is kept with the edges is made
            counts.append(operations(step, monkeypatch))
    assert counts[0] == counts[1]

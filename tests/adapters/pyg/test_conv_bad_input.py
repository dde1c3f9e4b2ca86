"""Bad input ends in the stock layer's own error, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnn_backend
from tests.adapters.pyg.helpers import edges, falls_back, normal

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATv2Conv

N, F = 6, 3
X = normal(N, F)
Call = Callable[[], Any]
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


def layer(**arguments: Any) -> GATv2Conv:
    return GATv2Conv(F, 4, heads=2, **arguments)


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def adjacency(rows: int, columns: int) -> torch.Tensor:
    places = ids([0, rows - 1], [1, 0])
    return torch.sparse_coo_tensor(places, torch.ones(2), (rows, columns)).coalesce()


def layer_with(name: str, value: Any) -> GATv2Conv:
    conv = layer()
    setattr(conv, name, value)
    return conv


NO_LOOPS: dict[str, Any] = {"add_self_loops": False}
PAIR = (normal(N, F), normal(4, F))
CASES: dict[str, tuple[Callable[[], GATv2Conv], tuple[Any, ...]]] = {
    "source too large": (layer, (X, ids([0, N], [1, 2]))),
    "source too large, no loops": (lambda: layer(**NO_LOOPS), (X, ids([0, N], [1, 2]))),
    "destination too large": (lambda: layer(**NO_LOOPS), (X, ids([0, 1], [1, N]))),
    "negative source": (layer, (X, ids([0, -1], [1, 2]))),
    "negative destination": (lambda: layer(**NO_LOOPS), (X, ids([0, 1], [1, -2]))),
    "destination too large for a pair": (
        lambda: GATv2Conv((F, F), 4, **NO_LOOPS),
        (PAIR, ids([0, 5], [1, 4])),
    ),
    "reversed ids out of range": (
        lambda: layer(flow="target_to_source", **NO_LOOPS),
        (X, ids([0, N], [1, 2])),
    ),
    "three rows of ids": (lambda: layer(**NO_LOOPS), (X, ids([0, 1], [1, 0], [1, 1]))),
    "one dimension": (lambda: layer(**NO_LOOPS), (X, torch.tensor([0, 1]))),
    "float ids": (lambda: layer(**NO_LOOPS), (X, ids([0, 1], [1, 0]).float())),
    "bool ids": (lambda: layer(**NO_LOOPS), (X, ids([0, 1], [1, 0]).bool())),
    "8-bit ids": (lambda: layer(**NO_LOOPS), (X, ids([0, 1], [1, 0]).to(torch.int8))),
    "no edges given": (layer, (X, None)),
    "list of edges": (layer, (X, [[0, 1], [1, 0]])),
    "wrong feature width": (layer, (normal(N, F + 1), edges(N, N))),
    "three-dimensional features": (layer, (normal(2, N, F), edges(N, N))),
    "no features": (layer, (None, edges(N, N))),
    "pair without destinations": (lambda: GATv2Conv((F, F), 4), ((X, None), edges(N, N))),
    "pair without sources": (lambda: GATv2Conv((F, F), 4), ((None, X), edges(N, N))),
    "integer features": (layer, (torch.ones(N, F, dtype=torch.long), edges(N, N))),
    "float64 features": (layer, (X.double(), edges(N, N))),
    "complex features": (layer, (X.to(torch.complex64), edges(N, N))),
    "features on another device": (layer, (X.to("meta"), edges(N, N))),
    "edge features without edge_dim": (lambda: layer(**NO_LOOPS), (X, edges(N, N), normal(5, 2))),
    "dropout out of range": (lambda: layer_with("dropout", 1.5), (X, edges(N, N))),
    "EdgeIndex of another size": (
        layer,
        (X, EdgeIndex(ids([0, 1], [1, 0]), sparse_size=(N + 1, N + 1))),
    ),
    "sorted EdgeIndex smaller than the features": (
        lambda: layer(**NO_LOOPS),
        (X, EdgeIndex(ids([0, 1], [0, 1]), sort_order="col")),
    ),
    "adjacency of another size": (lambda: layer(**NO_LOOPS), (X, adjacency(N, N + 1))),
    "adjacency of another height": (layer, (X, adjacency(N + 2, N + 2))),
    "adjacency in CSC": (lambda: layer(**NO_LOOPS), (X, adjacency(N, N).to_sparse_csc())),
    "adjacency with reversed flow": (
        lambda: layer(flow="target_to_source", **NO_LOOPS),
        (X, adjacency(N, N)),
    ),
    "unknown fill_value on an adjacency": (
        lambda: layer(fill_value="median"),
        (X, adjacency(N, N)),
    ),
    "list as fill_value on an adjacency": (
        lambda: layer(fill_value=[1.0]),
        (X, adjacency(N, N)),
    ),
    "mean fill_value on a wide adjacency": (
        lambda: GATv2Conv((F, F), 4),
        ((normal(4, F), normal(7, F)), adjacency(7, 4)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_stock_error(name: str) -> None:
    make, arguments = CASES[name]
    conv = make()
    with pytest.raises(Exception) as stock:
        conv(*arguments)
    with gnn_backend.enabled(), pytest.raises(type(stock.value)) as ours:
        conv(*arguments)
    assert str(ours.value) == str(stock.value)


def test_bool_ids_run_the_stock_layer_where_it_takes_them() -> None:
    conv, edge_index = layer(), ids([0, 1, 1], [1, 0, 1]).bool()
    want = conv(X, edge_index)
    with falls_back("graph-type"):
        assert torch.equal(conv(X, edge_index), want)


@pytest.mark.parametrize("mode", ["strict", "verify"])
def test_stock_error_in_other_modes(mode: str) -> None:
    with gnn_backend.enabled(mode=mode), pytest.raises(IndexError, match="edge_index"):
        layer()(X, ids([0, N], [1, 2]))


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize(("nodes", "count"), [(N, 0), (0, 0), (1, 0), (1, 3)])
def test_empty(nodes: int, count: int, loops: bool) -> None:
    conv = layer(add_self_loops=loops)
    x, edge_index = normal(nodes, F).requires_grad_(), torch.zeros(2, count, dtype=torch.long)
    want = conv(x, edge_index)
    with gnn_backend.enabled():
        got = conv(x, edge_index)
    assert got.shape == want.shape
    assert torch.allclose(got, want, atol=1e-6)
    for a, b in zip(
        torch.autograd.grad(got.sum(), [x, conv.lin_l.weight, conv.att]),
        torch.autograd.grad(want.sum(), [x, conv.lin_l.weight, conv.att]),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-6)

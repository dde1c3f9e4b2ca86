"""PyG's attention layers beside their arguments: dtypes, autocast, odd edges, reasons, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from tests.adapters.attention import check_equals_stock
from tests.adapters.pyg.helpers import edges, falls_back, normal

pytest.importorskip("torch_geometric")
from torch_geometric.nn import AGNNConv, GATConv, GATv2Conv, TransformerConv

#: Kernels and all arguments are for the grid; here what surrounds them is to be right.
pytestmark = pytest.mark.usefixtures("twin_engine")

LAYERS = [GATConv, GATv2Conv, TransformerConv]


def test_agnn_on_zero_rows() -> None:
    x = normal(12, 4)
    x[3] = 0
    check_equals_stock(AGNNConv(), "pyg", x, edges(12, 12))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cls", [*LAYERS, AGNNConv])
def test_dtypes(cls: type, dtype: torch.dtype) -> None:
    conv = AGNNConv() if cls is AGNNConv else cls(6, 4, heads=2)
    check_equals_stock(conv.to(dtype), "pyg", normal(12, 6, dtype=dtype), edges(12, 12))


@pytest.mark.parametrize("cls", [GATConv, TransformerConv, GATv2Conv])
def test_autocast(cls: type) -> None:
    conv = cls(6, 4, heads=2, edge_dim=3)
    edge_index = edges(12, 12)
    features = normal(edge_index.shape[1], 3)
    with torch.autocast("cpu", torch.bfloat16):
        want = conv(normal(12, 6), edge_index, features)
        with gnn_backend.enabled(mode="strict", hosts="pyg"):
            got = conv(normal(12, 6), edge_index, features)
    assert got.dtype == want.dtype
    assert torch.allclose(got.float(), want.float(), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("cls", [GATConv, GATv2Conv])
def test_edge_features_of_one_number(cls: type) -> None:
    edge_index = edges(12, 12)
    conv = cls(6, 4, heads=2, edge_dim=1)
    check_equals_stock(conv, "pyg", normal(12, 6), edge_index, normal(edge_index.shape[1]))


def test_edge_features_that_gat_ignores() -> None:
    edge_index = edges(12, 12)
    x, features = normal(12, 6), normal(edge_index.shape[1], 3)
    check_equals_stock(GATConv(6, 4, 2), "pyg", x, edge_index, features)


class Doubling(torch.nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize("cls", [GATConv, TransformerConv])
def test_a_projection_that_must_be_called(cls: type) -> None:
    conv = cls(6, 4, heads=2, edge_dim=3)
    torch.nn.utils.parametrize.register_parametrization(conv.lin_edge, "weight", Doubling())
    edge_index = edges(12, 12)
    features = normal(edge_index.shape[1], 3)
    check_equals_stock(conv, "pyg", normal(12, 6), edge_index, features)


@pytest.mark.parametrize("cls", [*LAYERS, AGNNConv])
def test_verify_compares_dropout_too(cls: type) -> None:
    conv = AGNNConv() if cls is AGNNConv else cls(6, 4, heads=2, dropout=0.5)
    with gnn_backend.enabled(mode="verify", hosts="pyg"), gnn_backend.profile() as profile:
        conv(normal(12, 6).requires_grad_(), edges(12, 12))
    assert profile.accelerated == 1


def test_reasons() -> None:
    x, edge_index = normal(12, 6), edges(12, 12)
    features = normal(edge_index.shape[1], 3)
    with falls_back("edge-features"):
        TransformerConv(6, 3)(x, edge_index, features[:, None])
    with falls_back("input-form"):
        GATConv((6, 6), 4)((x, None), edge_index)
    with falls_back("aggr-changed"):
        GATConv(6, 4, aggr="mean")(x, edge_index)
    with falls_back("node-dim"):
        conv = AGNNConv()
        conv.node_dim = 0
        conv(x, edge_index)
    with falls_back("parametrized"):
        conv = GATConv(6, 4)
        conv.att_dst = torch.nn.Parameter(torch.ones(1, 1, 1))
        conv(x, edge_index)


@pytest.mark.parametrize(
    ("cls", "arguments", "features"),
    [
        (GATConv, {"edge_dim": 3}, normal(3, 3)),
        (GATv2Conv, {"edge_dim": 3}, normal(3, 3)),
        (GATv2Conv, {}, normal(71, 3)),
        (TransformerConv, {"edge_dim": 3}, normal(3, 3)),
        (TransformerConv, {"edge_dim": 3}, None),
        (GATConv, {"edge_dim": 3}, normal(71, 2)),
    ],
)
def test_bad_edge_features_raise_the_stock_error(
    cls: type, arguments: dict[str, Any], features: Tensor | None
) -> None:
    conv, x, edge_index = cls(6, 4, **arguments), normal(12, 6), edges(12, 12)
    with pytest.raises(Exception) as stock:
        conv(x, edge_index, features)
    with gnn_backend.enabled(hosts="pyg"), pytest.raises(Exception) as ours:
        conv(x, edge_index, features)
    assert type(ours.value) is type(stock.value)
    assert str(ours.value) == str(stock.value)


def test_edge_features_that_stock_ignores_may_be_anything() -> None:
    conv, x, edge_index = GATConv(6, 4, add_self_loops=False), normal(12, 6), edges(12, 12)
    want = conv(x, edge_index, normal(3, 3))
    with gnn_backend.enabled(hosts="pyg", mode="strict"):
        torch.testing.assert_close(conv(x, edge_index, normal(3, 3)), want)

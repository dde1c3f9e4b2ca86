"""Every argument of PyG's attention layers but GATv2Conv's: results and gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from tests.adapters.attention import check_equals_stock
from tests.adapters.pyg.helpers import edges, falls_back, normal, pairwise

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex
from torch_geometric.nn import AGNNConv, GATConv, GATv2Conv, TransformerConv

#: Kernels are for test_on_kernels: here many combinations of arguments are to be right.
pytestmark = pytest.mark.usefixtures("twin_engine")

FEATURES = (6, 5)  # of sources and, for a pair input, of destinations
SIZES = {"one": (12, 12), "pair": (12, 12), "wide": (9, 14), "tall": (14, 9), "no dst": (14, 9)}

COMMON: dict[str, list[Any]] = {
    "form": ["list", "sorted", "csr"],
    "nodes": ["one", "pair", "wide", "tall"],
    "flow": ["source_to_target", "target_to_source"],
    "heads": [1, 3],
    "out_channels": [1, 4, 7],
    "concat": [True, False],
    "dropout": [0.0, 0.4],
    "training": [True, False],
    "edge_dim": [None, 1, 3],
    "bias": [True, False],
    "returns": [None, True, False],
}
CHOICES: dict[type, dict[str, list[Any]]] = {
    GATConv: COMMON
    | {
        "nodes": [*SIZES],
        "negative_slope": [0.2, 0.0, 1.5],
        "add_self_loops": [True, False],
        "fill_value": ["mean", "max", 0.5, "tensor"],
        "residual": [True, False],
        "size": [False, True],
    },
    GATv2Conv: COMMON
    | {
        "add_self_loops": [True, False],
        "fill_value": ["mean", 0.5, "tensor"],
        "residual": [True, False],
        "share_weights": [True, False],
    },
    TransformerConv: COMMON | {"beta": [True, False], "root_weight": [True, False]},
}
CALLED = ("form", "nodes", "training", "returns", "size", "out_channels")


def allowed(c: dict[str, Any]) -> bool:
    csr, loops, fill = c["form"] == "csr", c.get("add_self_loops"), c.get("fill_value")
    if csr and (c["edge_dim"] or c["returns"] is not None):
        return False  # PyG has an order of its own for these
    if csr and loops and fill in ("mean", "max", "tensor"):
        return False
    if loops and c["edge_dim"] and c["nodes"] == "wide" and fill in ("mean", "max"):
        return False  # PyG indexes its rows by the wrong end there
    if c["nodes"] == "no dst" and not (c["size"] and not c["residual"]):
        return False
    if c["flow"] == "target_to_source":
        return not csr and c["nodes"] in ("one", "pair") and not c.get("size")
    return True


def make(cls: type, c: dict[str, Any]) -> torch.nn.Module:
    pair = FEATURES if not c.get("share_weights") else (FEATURES[0],) * 2
    channels: Any = pair[0] if c["nodes"] == "one" else pair
    options = {name: value for name, value in c.items() if name not in CALLED}
    if options.get("fill_value") == "tensor":
        options["fill_value"] = normal(c["edge_dim"] or 1, seed=5)
    torch.manual_seed(1)
    return cls(channels, c["out_channels"], **options).train(c["training"])


def inputs(c: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    num_src, num_dst = SIZES[c["nodes"]]
    pair = FEATURES if not c.get("share_weights") else (FEATURES[0],) * 2
    x: Any = normal(num_src, pair[0])
    if c["nodes"] != "one":
        x = (x, None if c["nodes"] == "no dst" else normal(num_dst, pair[1], seed=1))
    plain: Any = edges(num_src, num_dst)
    options: dict[str, Any] = {}
    if c["edge_dim"]:
        count = plain.shape[1]
        options["edge_attr"] = normal(count, c["edge_dim"], seed=2)
    if c["form"] == "sorted":
        by = "col" if c["flow"] == "source_to_target" else "row"
        plain, perm = EdgeIndex(plain, sparse_size=(num_src, num_dst)).sort_by(by)
        if "edge_attr" in options:
            options["edge_attr"] = options["edge_attr"][perm]
    if c["form"] == "csr":
        values = torch.ones(plain.shape[1])
        plain = torch.sparse_coo_tensor(plain.flip(0), values, (num_dst, num_src))
        plain = plain.coalesce().to_sparse_csr()
    if c["returns"] is not None:
        options["return_attention_weights"] = c["returns"]
    if c.get("size"):
        options["size"] = (num_src, num_dst)
    return x, plain, options


COMBINATIONS = [(cls, c) for cls, choices in CHOICES.items() for c in pairwise(choices, allowed)]


def name(value: Any) -> str:
    if isinstance(value, dict):
        return "-".join(map(str, value.values()))
    return value.__name__


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(("cls", "c"), COMBINATIONS, ids=name)
def test_equals_stock(cls: type, c: dict[str, Any]) -> None:
    x, edge_index, options = inputs(c)
    masks = check_equals_stock(make(cls, c), "pyg", x, edge_index, **options)
    assert len(masks) == (c["dropout"] > 0 and c["training"])


def test_many_combinations() -> None:
    assert all(sum(cls is k for k, _ in COMBINATIONS) >= 14 for cls in CHOICES)


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("width", [1, 6])
def test_agnn(loops: bool, learned: bool, width: int) -> None:
    conv = AGNNConv(requires_grad=learned, add_self_loops=loops)
    conv.beta.data.fill_(0.7)
    check_equals_stock(conv, "pyg", normal(12, width), edges(12, 12))


def test_agnn_on_zero_rows() -> None:
    x = normal(12, 4)
    x[3] = 0
    check_equals_stock(AGNNConv(), "pyg", x, edges(12, 12))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cls", [*CHOICES, AGNNConv])
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


@pytest.mark.parametrize("cls", [*CHOICES, AGNNConv])
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

"""DGL's attention layers beside their arguments: dtypes, errors, what falls back and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnn_backend

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.nn.pytorch import AGNNConv, DotGatConv, EdgeGATConv, GATConv, GATv2Conv

from gnn_backend.adapters.dgl import dot_gat
from tests.adapters.attention import check_equals_stock
from tests.adapters.dgl.helpers import KINDS, falls_back, make_graph
from tests.adapters.pyg.helpers import normal

#: Kernels and all arguments are for the grid; here what surrounds them is to be right.
pytestmark = [pytest.mark.usefixtures("twin_engine"), pytest.mark.sampled(5)]

WIDTH, EDGE_WIDTH = 6, 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("learned", [True, False])
def test_agnn(kind: str, pair: bool, learned: bool) -> None:
    graph = make_graph(kind)
    conv = AGNNConv(0.7, learned, allow_zero_in_degree=True)
    feat: Any = normal(graph.num_src_nodes(), WIDTH)
    if pair:
        feat = (feat, normal(graph.num_dst_nodes(), WIDTH, seed=1))
    if pair and kind not in ("slice", "block"):
        with falls_back("input-form"):
            conv(graph, feat)
    elif not pair and kind == "slice":
        with gnn_backend.enabled(hosts="dgl"), pytest.raises(KeyError):
            conv(graph, feat)
    else:
        check_equals_stock(conv, "dgl", graph, feat)


def test_a_pair_where_both_ends_share_a_frame() -> None:
    """Stock writes both ends' features under one name there, and reads the second for both."""
    conv, graph = DotGatConv((WIDTH, WIDTH), 4, 2, True), make_graph("homogeneous")
    x, y = normal(14, WIDTH), normal(14, WIDTH, seed=1)
    assert dot_gat.eligible(conv, graph, (x, y)) == "input-form"
    with gnn_backend.enabled(hosts="dgl"):  # DGL's own calls may be fused
        got = conv(graph, (x, y))
    torch.testing.assert_close(got, conv(graph, (y, y)))


def layer(cls: type, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    if cls is AGNNConv:
        return AGNNConv(allow_zero_in_degree=True)
    sizes = (WIDTH, EDGE_WIDTH, 4, 2) if cls is EdgeGATConv else (WIDTH, 4, 2)
    return cls(*sizes, **{"allow_zero_in_degree": True, **options})


def features(cls: type, graph: Any, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    found = (normal(graph.num_src_nodes(), WIDTH, dtype=dtype),)
    if cls is EdgeGATConv:
        found += (normal(graph.num_edges(), EDGE_WIDTH, seed=2, dtype=dtype),)
    return found


LAYERS = [GATConv, GATv2Conv, EdgeGATConv, DotGatConv, AGNNConv]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cls", LAYERS)
def test_dtypes(cls: type, dtype: torch.dtype) -> None:
    graph = make_graph("homogeneous")
    check_equals_stock(layer(cls).to(dtype), "dgl", graph, *features(cls, graph, dtype))


@pytest.mark.parametrize("kind", ["homogeneous", "block"])
@pytest.mark.parametrize("cls", LAYERS)
def test_zero_in_degree_raises_the_stock_error(cls: type, kind: str) -> None:
    conv, graph = layer(cls), make_graph(kind)
    conv._allow_zero_in_degree = False
    with pytest.raises(dgl.DGLError) as stock:
        conv(graph, *features(cls, graph))
    for mode in ("auto", "strict", "verify"):
        with gnn_backend.enabled(mode=mode, hosts="dgl"), pytest.raises(dgl.DGLError) as ours:
            conv(graph, *features(cls, graph))
        assert str(ours.value) == str(stock.value)


@pytest.mark.parametrize("cls", [GATConv, GATv2Conv, EdgeGATConv])
def test_verify_compares_dropout_too(cls: type) -> None:
    conv, graph = layer(cls, attn_drop=0.5, feat_drop=0.2), make_graph("homogeneous")
    with gnn_backend.enabled(mode="verify", hosts="dgl"), gnn_backend.profile() as profile:
        conv(graph, *features(cls, graph))
    assert profile.accelerated == 1


def with_part(part: str, value: Any) -> torch.nn.Module:
    conv = layer(GATConv)
    setattr(conv, part, value)
    return conv


def test_reasons() -> None:
    graph, x = make_graph("homogeneous"), normal(14, WIDTH)
    with falls_back("edge-weight"):
        layer(GATConv)(graph, x, edge_weight=torch.ones(graph.num_edges()))
    for part, value in (
        ("leaky_relu", torch.nn.ReLU()),
        ("attn_drop", torch.nn.Identity()),
        ("attn_r", torch.nn.Parameter(torch.ones(1, 1, 1))),
    ):
        with falls_back("parametrized"):
            with_part(part, value)(graph, x)
    conv = layer(GATConv)
    conv.leaky_relu.register_forward_hook(lambda *_: None)
    with falls_back("hooks"):
        conv(graph, x)
    with falls_back("input-form"):
        layer(GATConv)(graph, x.view(14, 1, WIDTH))


BAD: dict[str, Any] = {
    "too few rows": normal(13, WIDTH),
    "too many rows": normal(15, WIDTH),
    "wrong width": normal(14, WIDTH - 1),
    "wrong dtype": normal(14, WIDTH).double(),
    "a short tuple": (normal(14, WIDTH),),
    "no tensors": (normal(14, WIDTH), None),
    "nothing": None,
    "wrong rows in a pair": (normal(14, WIDTH), normal(13, WIDTH)),
}


@pytest.mark.parametrize("feat", BAD.values(), ids=BAD)
@pytest.mark.parametrize("cls", [GATConv, EdgeGATConv, DotGatConv])
def test_bad_features_raise_the_stock_error(cls: type, feat: Any) -> None:
    conv, graph = layer(cls), make_graph("homogeneous")
    further = features(cls, graph)[1:]
    with pytest.raises(Exception) as stock:
        conv(graph, feat, *further)
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(Exception) as ours:
        conv(graph, feat, *further)
    assert type(ours.value) is type(stock.value)
    assert str(ours.value) == str(stock.value)


def test_a_projection_that_must_be_called() -> None:
    conv, graph = layer(EdgeGATConv), make_graph("homogeneous")
    conv.fc_edge.register_forward_hook(lambda module, inputs, out: 2 * out)
    check_equals_stock(conv, "dgl", graph, *features(EdgeGATConv, graph))

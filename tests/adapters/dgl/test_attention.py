"""Every argument of DGL's attention layers: results and gradients as stock."""

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
from tests.adapters.pyg.helpers import normal, pairwise

#: Kernels are for test_on_kernels: here many combinations of arguments are to be right.
pytestmark = pytest.mark.usefixtures("twin_engine")

WIDTH, EDGE_WIDTH = 6, 3
SHAPES: dict[str, list[Any]] = {
    "graph": list(KINDS),
    "idtype": [torch.int64, torch.int32],
    "feat": ["tensor", "pair"],
    "in_feats": ["int", "pair"],
    "out_feats": [1, 4],
    "num_heads": [1, 3],
    "allow_zero_in_degree": [True, False],
    "get_attention": [False, True],
}
ATTENTION: dict[str, list[Any]] = SHAPES | {
    "training": [True, False],
    "feat_drop": [0.0, 0.5],
    "attn_drop": [0.0, 0.4],
    "negative_slope": [0.2, 1.5],
    "residual": [False, True, "identity"],
    "activation": [None, torch.tanh],
    "bias": [True, False],
}
CHOICES: dict[type, dict[str, list[Any]]] = {
    GATConv: ATTENTION,
    GATv2Conv: ATTENTION | {"share_weights": [False, True], "get_attention": [True, False]},
    EdgeGATConv: ATTENTION | {"residual": [False, True]},
    DotGatConv: SHAPES,
}
CALLED = ("graph", "idtype", "feat", "in_feats", "training", "get_attention", "residual")


def allowed(c: dict[str, Any]) -> bool:
    if c["in_feats"] == "pair" and c["feat"] == "tensor":
        return False
    if c["graph"] == "slice" and c["feat"] == "tensor":
        return False
    return bool(c["num_heads"] * c["out_feats"] > 1)


def allowed_dot(c: dict[str, Any]) -> bool:
    if c["feat"] == "pair" and c["graph"] not in ("slice", "block"):
        return False  # see test_a_pair_where_both_ends_share_a_frame
    return allowed(c) and (c["in_feats"] == "pair") == (c["feat"] == "pair")


def run(cls: type, c: dict[str, Any]) -> list[Any]:
    graph = make_graph(c["graph"], covered=not c["allow_zero_in_degree"], idtype=c["idtype"])
    identity = c.get("residual") == "identity"
    width = c["out_feats"] * c["num_heads"] if identity else WIDTH
    options = {n: value for n, value in c.items() if n not in CALLED}
    if "residual" in c:
        options["residual"] = bool(c["residual"])
    if cls is EdgeGATConv:
        options["edge_feats"] = EDGE_WIDTH
    torch.manual_seed(1)
    wide = width if c["in_feats"] == "int" or cls is GATv2Conv else width + 2
    conv = cls(width if c["in_feats"] == "int" else (wide, width), **options)
    conv.train(c.get("training", True))
    feat: Any = normal(graph.num_src_nodes(), wide)
    if c["feat"] == "pair":
        feat = (feat, normal(graph.num_dst_nodes(), width, seed=1))
    further = [normal(graph.num_edges(), EDGE_WIDTH, seed=2)] if cls is EdgeGATConv else []
    return check_equals_stock(conv, "dgl", graph, feat, *further, get_attention=c["get_attention"])


COMBINATIONS = [
    (cls, c)
    for cls, choices in CHOICES.items()
    for c in pairwise(choices, allowed_dot if cls is DotGatConv else allowed)
]


def name(value: Any) -> str:
    if isinstance(value, dict):
        texts = (getattr(v, "__name__", str(v)) for v in value.values())
        return "-".join(text.replace("torch.", "") for text in texts)
    return value.__name__


@pytest.mark.parametrize(("cls", "c"), COMBINATIONS, ids=name)
def test_equals_stock(cls: type, c: dict[str, Any]) -> None:
    masks = run(cls, c)
    assert len(masks) == (c.get("attn_drop", 0.0) > 0 and c["training"])


def test_many_combinations() -> None:
    assert all(sum(cls is k for k, _ in COMBINATIONS) >= 8 for cls in CHOICES)


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


LAYERS = [*CHOICES, AGNNConv]


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

"""What has no fused path runs the stock code, is counted with its reason, and stays right."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import gnn_backend
from gnn_backend.config import override
from gnn_backend.errors import StrictFallbackError

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.nn.pytorch import EdgeGATConv, GATConv, GATv2Conv

from gnn_backend.adapters.dgl import conv as adapter
from gnn_backend.adapters.dgl.graph import unsupported_reason
from tests.adapters.dgl.helpers import falls_back, fused, make_graph
from tests.adapters.pyg.helpers import normal

FEAT = normal(14, 6)


def layer(**options: Any) -> GATv2Conv:
    torch.manual_seed(0)
    return GATv2Conv(6, 4, 2, **{"allow_zero_in_degree": True, **options})


def with_part(name: str, part: Any) -> GATv2Conv:
    conv = layer()
    setattr(conv, name, part)
    return conv


def hooked(part: str, register: str) -> GATv2Conv:
    conv = layer()
    getattr(getattr(conv, part), register)(lambda *_: None)
    return conv


LAYERS = [
    ("parametrized", lambda: with_part("leaky_relu", nn.ReLU())),
    ("parametrized", lambda: with_part("attn_drop", nn.Identity())),
    ("parametrized", lambda: with_part("attn", nn.Parameter(torch.ones(1, 2, 1)))),
    ("hooks", lambda: hooked("leaky_relu", "register_forward_hook")),
    ("hooks", lambda: hooked("attn_drop", "register_forward_pre_hook")),
    ("hooks", lambda: hooked("leaky_relu", "register_full_backward_hook")),
]


@pytest.mark.parametrize(("reason", "make"), LAYERS)
def test_layer(reason: str, make: Any) -> None:
    conv, graph = make(), make_graph("homogeneous")
    torch.manual_seed(1)
    want = conv(graph, FEAT)
    torch.manual_seed(1)
    with falls_back(reason):
        got = conv(graph, FEAT)
    assert torch.equal(got, want)


def test_global_hooks() -> None:
    conv, graph = layer(), make_graph("homogeneous")
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with falls_back("hooks"):
            conv(graph, FEAT)
    finally:
        handle.remove()
    with fused():
        conv(graph, FEAT)


def test_inactive_attention_dropout_is_fused() -> None:
    conv, graph = layer(attn_drop=0.5).eval(), make_graph("homogeneous")
    with fused():
        conv(graph, FEAT)


def test_strict_names_the_reason() -> None:
    conv, graph = with_part("leaky_relu", nn.ReLU()), make_graph("homogeneous")
    with (
        gnn_backend.enabled(mode="strict", hosts="dgl"),
        pytest.raises(StrictFallbackError, match="parametrized"),
    ):
        conv(graph, FEAT)


# ---------------------------------------------------------------------- graphs


class OwnGraph(dgl.DGLGraph):
    """A graph that may change what message passing means."""


def test_graph_type() -> None:
    conv = layer()
    own = make_graph("homogeneous")
    own.__class__ = OwnGraph
    with falls_back("graph-type"):
        conv(own, FEAT)
    ends = torch.tensor([0, 1]), torch.tensor([1, 0])
    several = dgl.heterograph({("a", "r", "a"): ends, ("a", "s", "a"): ends})
    assert adapter.eligible(conv, several, FEAT[:2]) == "graph-type"
    spare = dgl.heterograph({("a", "r", "a"): ends}, {"a": 2, "b": 3})
    assert adapter.eligible(conv, spare, FEAT[:2]) == "graph-type"


def test_too_small() -> None:
    conv, graph = layer(), make_graph("homogeneous")
    with override(min_edges=graph.num_edges() + 1), falls_back("too-small"):
        conv(graph, FEAT)
    with override(min_edges=graph.num_edges()), fused():
        conv(graph, FEAT)


@pytest.mark.parametrize("formats", ["csc", "coo", ["coo", "csc"], ["csr", "csc"]])
def test_restricted_formats_with_in_edges_or_edge_list_are_fused(formats: Any) -> None:
    conv, graph = layer(), make_graph("homogeneous")
    want = conv(graph, FEAT)
    with fused():
        got = conv(graph.formats(formats), FEAT)
    assert torch.allclose(got, want, rtol=1e-5, atol=1e-6)


def test_restricted_to_out_edges() -> None:
    conv, graph = layer(), make_graph("homogeneous").formats("csr")
    with pytest.raises(dgl.DGLError, match="restricted sparse format"):
        conv(graph, FEAT)
    with (
        gnn_backend.enabled(hosts="dgl"),
        pytest.raises(dgl.DGLError, match="restricted sparse format"),
    ):
        conv(graph, FEAT)
    with (
        gnn_backend.enabled(mode="strict", hosts="dgl"),
        pytest.raises(StrictFallbackError, match="dgl-restricted-format"),
    ):
        conv(graph, FEAT)


# ---------------------------------------------------------------------- devices and dtypes


def test_cuda_features() -> None:
    conv, graph = layer(), make_graph("homogeneous")
    with FakeTensorMode():
        feat = torch.empty(14, 6, device="cuda")
    with (
        gnn_backend.enabled(mode="strict", hosts="dgl"),
        pytest.raises(StrictFallbackError, match="device-mixed"),
    ):
        conv(graph, feat)
    assert adapter.eligible(conv, graph, FEAT.to("meta")) == "device"


def test_cuda_graph() -> None:
    meta = SimpleNamespace(num_edges=lambda: 1, num_nodes=lambda: 1, find_edge=lambda e: (0, 0))
    index = SimpleNamespace(_cache={}, metagraph=meta, ctx=SimpleNamespace(device_type=2))
    assert unsupported_reason(SimpleNamespace(_graph=index)) == "dgl-no-cuda"


def test_autocast() -> None:
    """16-bit projections beside a float32 attention vector: DGL refuses them, and so it shall."""
    conv, graph = layer(), make_graph("homogeneous")
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(dgl.DGLError) as stock:
            conv(graph, FEAT)
        with gnn_backend.enabled(hosts="dgl"), pytest.raises(dgl.DGLError) as ours:
            conv(graph, FEAT)
        assert str(ours.value) == str(stock.value)
        assert adapter.eligible(conv, graph, FEAT) == "dtype-mixed"
        for dtype in (torch.bfloat16, torch.float64):
            whole, feat = layer().to(dtype), FEAT.to(dtype)
            want = whole(graph, feat)
            with fused():
                got = whole(graph, feat)
            assert got.dtype == want.dtype
            assert torch.allclose(got, want, rtol=2e-2, atol=2e-2)


def test_cuda_autocast_leaves_cpu_tensors_alone() -> None:
    conv, graph = layer(), make_graph("homogeneous")
    want = conv(graph, FEAT)
    torch.set_autocast_enabled("cuda", True)
    try:
        with fused():
            got = conv(graph, FEAT)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert torch.allclose(got, want, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- bad input

BAD = {
    "too few rows": FEAT[:-1],
    "too many rows": FEAT.repeat(2, 1),
    "two rows a node": normal(14, 2, 6),
    "wrong width": FEAT[:, :-1],
    "wrong dtype": FEAT.double(),
    "integers": FEAT.long(),
    "a list": [FEAT, FEAT],
    "a short tuple": (FEAT,),
    "no tensors": (FEAT, None),
    "nothing": None,
    "wrong rows in a pair": (FEAT, FEAT[:-1]),
}


@pytest.mark.parametrize("feat", BAD.values(), ids=BAD)
def test_bad_features_raise_the_stock_error(feat: Any) -> None:
    conv, graph = layer(residual=True), make_graph("homogeneous")
    with pytest.raises(Exception) as stock:
        conv(graph, feat)
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(Exception) as ours:
        conv(graph, feat)
    assert type(ours.value) is type(stock.value)
    assert str(ours.value) == str(stock.value)


@pytest.mark.parametrize("kind", ["homogeneous", "block"])
def test_zero_in_degree_raises_the_stock_error(kind: str) -> None:
    conv, graph = layer(allow_zero_in_degree=False), make_graph(kind)
    with pytest.raises(dgl.DGLError) as stock:
        conv(graph, FEAT)
    for mode in ("auto", "strict", "verify"):
        with gnn_backend.enabled(mode=mode, hosts="dgl"), pytest.raises(dgl.DGLError) as ours:
            conv(graph, FEAT)
        assert type(ours.value) is type(stock.value)
        assert str(ours.value) == str(stock.value)
    conv.set_allow_zero_in_degree(True)
    with fused():
        conv(graph, FEAT)
    conv.set_allow_zero_in_degree(False)
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(dgl.DGLError):
        conv(graph, FEAT)


@pytest.mark.parametrize(
    ("cls", "in_feats", "width", "reason"),
    [
        (GATConv, (6,), 1025, "head-dim"),
        (GATv2Conv, (6,), 1025, "head-dim"),
        (EdgeGATConv, (6, 3), 1025, "head-dim"),
        (EdgeGATConv, (6, 1025), 4, "edge-dim"),
    ],
)
def test_what_is_too_wide_drops_what_stock_drops(
    cls: type, in_feats: tuple[int, ...], width: int, reason: str
) -> None:
    nodes = torch.arange(len(FEAT))  # so few edges that DGL's own operators stay DGL's
    graph = dgl.graph((nodes, nodes.roll(1)))
    conv = cls(*in_feats, width, 2, feat_drop=0.5, attn_drop=0.5)
    edge_feats = [normal(graph.num_edges(), size) for size in in_feats[1:]]
    torch.manual_seed(1)
    want = conv(graph, FEAT, *edge_feats)
    torch.manual_seed(1)
    with falls_back(reason):
        assert torch.equal(conv(graph, FEAT, *edge_feats), want)

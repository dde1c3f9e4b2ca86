"""The ways to accelerate a layer: the class itself, a subclass of it, one instance, compiled."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch

import gnn_backend
from gnn_backend.adapters import dgl as adapter
from gnn_backend.config import get_config

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.nn.pytorch import GATv2Conv

from tests.adapters.dgl.helpers import fused, make_graph
from tests.adapters.pyg.helpers import assert_equal, gradients, normal
from tests.cases.cases import check_module_roundtrip

FEAT = normal(14, 6)
GRAPH = make_graph("homogeneous")


def make(cls: type = GATv2Conv, **options: Any) -> Any:
    torch.manual_seed(0)
    return cls(6, 4, 2, residual=True, allow_zero_in_degree=True, **options)


def test_ready_subclass() -> None:
    conv = make(adapter.GATv2Conv)
    assert isinstance(conv, GATv2Conv)
    assert_equal(dict(conv.state_dict()), dict(make().state_dict()))
    want = gradients(make(), GRAPH, FEAT)
    with gnn_backend.profile() as profile:
        got = gradients(conv, GRAPH, FEAT)
    assert_equal(got, want)
    assert (profile.accelerated, profile.fallbacks) == (1, 0)
    assert sum(profile.launches.values()) >= 3
    conv.leaky_relu = torch.nn.ReLU()
    with gnn_backend.profile() as profile:
        conv(GRAPH, FEAT)
    assert dict(profile.reasons) == {"parametrized": 1}


def test_everything_is_stock_inside_disabled() -> None:
    layers = make(adapter.GATv2Conv), gnn_backend.accelerate(make())
    with gnn_backend.profile() as profile:
        with gnn_backend.disabled():
            got = [conv(GRAPH, FEAT) for conv in layers]
        assert not profile.launches and profile.calls == 0
        [conv(GRAPH, FEAT) for conv in layers]
        assert sum(profile.launches.values()) >= 2
    assert all(torch.equal(out, make()(GRAPH, FEAT)) for out in got)


@pytest.mark.parametrize("cls", [GATv2Conv, adapter.GATv2Conv], ids=["patched", "subclass"])
def test_round_trip(cls: type) -> None:
    with gnn_backend.enabled(mode="strict", hosts="dgl"):
        check_module_roundtrip(make, lambda: make(cls), lambda m: m(GRAPH, FEAT))


def test_accelerated_instance() -> None:
    """One layer, without enable(): copies and pickles stay accelerated, undo restores."""
    conv = make()
    want = conv(GRAPH, FEAT)
    gnn_backend.accelerate(conv)
    buffer = io.BytesIO()
    torch.save(conv, buffer)
    buffer.seek(0)
    for each in (conv, copy.deepcopy(conv), torch.load(buffer, weights_only=False)):
        with gnn_backend.profile() as profile:
            got = each(GRAPH, FEAT)
        assert torch.allclose(got, want, rtol=1e-5, atol=1e-6)
        assert profile.accelerated == 1
        assert profile.launches
    gnn_backend.accelerate(conv, undo=True)
    assert type(conv) is GATv2Conv
    with gnn_backend.profile() as profile:
        assert torch.equal(conv(GRAPH, FEAT), want)
    assert profile.calls == 0


class Doubled(GATv2Conv):
    """Overrides forward and does not call the stock one."""

    def forward(self, graph: Any, feat: Any) -> Any:  # type: ignore[override]
        return self.fc_src(feat) * 2


class Scaled(GATv2Conv):
    """Overrides forward and calls the stock one."""

    def forward(self, graph: Any, feat: Any) -> Any:  # type: ignore[override]
        return super().forward(graph, feat) * 2


class Renamed(GATv2Conv):
    """Overrides nothing."""


def test_subclasses() -> None:
    own, scaled, renamed = make(Doubled), make(Scaled), make(Renamed)
    wants = [m(GRAPH, FEAT) for m in (own, scaled, renamed)]
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        assert torch.equal(own(GRAPH, FEAT), wants[0])
        assert profile.calls == 0
        assert torch.allclose(scaled(GRAPH, FEAT), wants[1], rtol=1e-5, atol=1e-6)
        assert torch.allclose(renamed(GRAPH, FEAT), wants[2], rtol=1e-5, atol=1e-6)
        assert (profile.accelerated, profile.fallbacks) == (2, 0)


def test_disable_puts_the_same_function_back() -> None:
    original = vars(GATv2Conv)["forward"]
    with gnn_backend.enabled(hosts="dgl"):
        assert vars(GATv2Conv)["forward"] is not original
    assert vars(GATv2Conv)["forward"] is original


def test_heterograph_conv_takes_its_layers_together() -> None:
    ends = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])
    hg = dgl.heterograph({("a", "r", "b"): ends, ("b", "s", "a"): ends})
    layers = {r: GATv2Conv((6, 6), 4, 2, allow_zero_in_degree=True) for r in ("r", "s")}
    conv = dgl.nn.pytorch.HeteroGraphConv(layers)
    feats = {"a": normal(2, 6), "b": normal(2, 6, seed=1)}
    want = conv(hg, (feats, feats))
    with fused():
        got = conv(hg, (feats, feats))
    assert_equal(got, want)


def test_verify_mode() -> None:
    conv = make(feat_drop=0.3)
    with gnn_backend.enabled(mode="verify", hosts="dgl"), gnn_backend.profile() as profile:
        conv(GRAPH, FEAT.clone().requires_grad_()).sum().backward()
    assert (profile.accelerated, profile.fallbacks) == (1, 0)


def test_inference_mode() -> None:
    conv = make()
    want = conv(GRAPH, FEAT)
    with fused(), torch.inference_mode():
        assert torch.allclose(conv(GRAPH, FEAT), want, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Dynamo")
def test_compiled_model_breaks_once_around_the_layer() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = make()

        def forward(self, graph: Any, feat: torch.Tensor) -> torch.Tensor:
            return self.conv(graph, feat * 2).sin()

    torch._dynamo.reset()
    model = Model()
    want = gradients(model, GRAPH, FEAT)
    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    compiled = torch.compile(model, backend=backend)
    with fused():
        assert_equal(gradients(compiled, GRAPH, FEAT), _prefixed(want))
    assert 1 <= len(graphs) <= 2  # what comes before the layer, and what comes after it
    torch._dynamo.reset()


def _prefixed(found: dict[str, Any]) -> dict[str, Any]:
    return {n.replace("conv.", "_orig_mod.conv."): value for n, value in found.items()}


def test_real_graph() -> None:
    folder = get_config().test_data
    if folder is None:
        pytest.skip("GNN_BACKEND_TEST_DATA is unset")
    path = folder / "cora.npz"
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    file = np.load(path)
    graph = dgl.graph(tuple(torch.from_numpy(file["edge_index"])), num_nodes=int(file["num_nodes"]))
    graph = dgl.add_self_loop(graph)
    torch.manual_seed(0)
    conv = GATv2Conv(32, 8, 4, feat_drop=0.2, residual=True)
    feat = normal(graph.num_nodes(), 32)
    want = gradients(conv, graph, feat)
    with fused():
        assert_equal(gradients(conv, graph, feat), want)


@pytest.mark.usefixtures("twin_engine")
@pytest.mark.parametrize("name", [n for n in adapter.__all__ if n.endswith("Conv")])
def test_every_ready_class(name: str) -> None:
    sizes = {"AGNNConv": (), "EdgeGATConv": (6, 3, 4, 2)}.get(name, (6, 4, 2))
    conv = getattr(adapter, name)(*sizes, allow_zero_in_degree=True)
    further = [torch.ones(GRAPH.num_edges(), 3)] if name == "EdgeGATConv" else []
    with gnn_backend.profile() as profile:
        got = conv(GRAPH, FEAT, *further)
    assert profile.accelerated == 1 and profile.launches
    with gnn_backend.disabled():
        torch.testing.assert_close(got, conv(GRAPH, FEAT, *further), rtol=2e-5, atol=2e-5)

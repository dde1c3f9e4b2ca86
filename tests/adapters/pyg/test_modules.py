"""The ready subclass, exchange with the stock class, and imports without PyG."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch

import gnn_backend
from gnn_backend import config
from gnn_backend.adapters import pyg
from gnn_backend.errors import StrictFallbackError
from tests.adapters.pyg.helpers import assert_equal, edges, fused, gradients, normal
from tests.cases.cases import check_module_roundtrip

pytest.importorskip("torch_geometric")
import torch_geometric
from torch_geometric.nn import GATv2Conv

X, EDGES = normal(12, 6), edges(12, 12)
ARGUMENTS = [
    {},
    {"heads": 3, "concat": False, "residual": True},
    {"share_weights": True, "bias": False, "edge_dim": 2},
]


def stock(**arguments: Any) -> GATv2Conv:
    torch.manual_seed(0)
    return GATv2Conv(6, 4, **arguments)


def ready(**arguments: Any) -> GATv2Conv:
    torch.manual_seed(0)
    return pyg.GATv2Conv(6, 4, **arguments)


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_ready_class_runs_fused_without_enable(arguments: dict[str, Any]) -> None:
    want = gradients(stock(**arguments), X, EDGES)
    with gnn_backend.profile() as profile:
        got = gradients(ready(**arguments), X, EDGES)
    assert_equal(got, want)
    assert profile.accelerated == 1 and profile.fallbacks == 0
    assert sum(profile.launches.values()) > 0
    with fused():
        assert_equal(gradients(ready(**arguments), X, EDGES), want)


def test_ready_class_is_a_stock_class() -> None:
    conv = ready()
    assert isinstance(conv, GATv2Conv)
    assert repr(conv) == repr(stock())
    assert pyg.GATv2Conv is type(conv)


def test_ready_class_falls_back_and_follows_the_mode() -> None:
    conv = ready(aggr="mean")
    with gnn_backend.profile() as profile:
        conv(X, EDGES)
    assert dict(profile.reasons) == {"aggr-changed": 1}
    with config.override(mode="strict"), pytest.raises(StrictFallbackError):
        conv(X, EDGES)
    with gnn_backend.enabled(mode="strict"), pytest.raises(StrictFallbackError):
        conv(X, EDGES)
    with gnn_backend.enabled(mode="verify"), gnn_backend.profile() as profile:
        ready()(X, EDGES)
    assert profile.accelerated == 1


def test_everything_is_stock_inside_disabled() -> None:
    layers = ready(), gnn_backend.accelerate(stock())
    with gnn_backend.profile() as profile:
        with gnn_backend.disabled():
            got = [conv(X, EDGES) for conv in layers]
        assert not profile.launches and profile.calls == 0
        [conv(X, EDGES) for conv in layers]
        assert sum(profile.launches.values()) >= 2
    assert all(torch.equal(out, stock()(X, EDGES)) for out in got)


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_roundtrip_of_ready_and_stock(arguments: dict[str, Any]) -> None:
    check_module_roundtrip(
        lambda: stock(**arguments), lambda: ready(**arguments), lambda m: m(X, EDGES)
    )


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_roundtrip_of_the_patched_class(arguments: dict[str, Any]) -> None:
    def call(module: GATv2Conv) -> torch.Tensor:
        with gnn_backend.enabled(), gnn_backend.profile() as profile:
            out = module(X, EDGES)
        assert profile.accelerated == 1
        return out

    check_module_roundtrip(lambda: stock(**arguments), lambda: stock(**arguments), call)


def test_pickles_made_while_enabled_load_without_this_package() -> None:
    with gnn_backend.enabled():
        conv = stock()
        conv(X, EDGES)
        blob = pickle.dumps(conv)
    assert b"gnn_backend" not in blob
    assert torch.equal(pickle.loads(blob)(X, EDGES), conv(X, EDGES))


def test_disable_puts_the_same_function_back() -> None:
    original = GATv2Conv.forward
    with gnn_backend.enabled():
        assert GATv2Conv.forward is not original
    assert GATv2Conv.forward is original


def test_equal_bits_in_repeated_runs() -> None:
    conv = stock(heads=3)
    with fused(calls=3):
        first, *others = (gradients(conv, X, EDGES) for _ in range(3))
    for other in others:
        for name, value in first.items():
            assert torch.equal(value, other[name]), name


def test_double_use_of_one_graph_in_a_model() -> None:
    """Two layers, one edge_index: backward through both, twice."""
    torch.manual_seed(0)
    model = torch.nn.ModuleList([GATv2Conv(6, 4, heads=2), GATv2Conv(8, 3)])

    def loss(model: torch.nn.ModuleList) -> torch.Tensor:
        return model[1](model[0](X, EDGES).relu(), EDGES).square().sum()

    other = copy.deepcopy(model)
    loss(other).backward()
    with fused(calls=2):
        value = loss(model)
        value.backward(retain_graph=True)
        value.backward()
    for name, parameter in model.named_parameters():
        want = 2 * other.get_parameter(name).grad
        assert (parameter.grad - want).abs().max() <= 2e-5 * want.abs().max(), name


def test_second_derivatives_are_right() -> None:
    conv = stock(heads=2).double()
    x = X.double().requires_grad_()

    def penalty() -> torch.Tensor:
        (grad,) = torch.autograd.grad(conv(x, EDGES).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, conv.att])

    want = penalty()
    with fused():
        got = penalty()
    for a, b in zip(got, want, strict=True):
        assert (a - b).abs().max() <= 1e-9 * b.abs().max()


def test_checkpointed_layer() -> None:
    from torch.utils.checkpoint import checkpoint

    conv, x = stock(), X.clone().requires_grad_()
    want = torch.autograd.grad(conv(x, EDGES).square().sum(), x)[0]
    with fused():  # the recomputation is cut short once it has what backward needs
        out = checkpoint(conv, x, EDGES, use_reentrant=False)
        got = torch.autograd.grad(out.square().sum(), x)[0]
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_adapter_imports_without_pyg() -> None:
    code = (
        "import sys; sys.modules['torch_geometric'] = None\n"
        "import gnn_backend; from gnn_backend.adapters import pyg\n"
        "gnn_backend.enable(hosts='pyg'); assert pyg.cached_bytes() == 0; pyg.clear_cache()\n"
        "assert not gnn_backend.patches()[0].active\n"
        "try: pyg.GATv2Conv\n"
        "except ImportError as error: print('clear:', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "clear:" in done.stdout and "torch_geometric" in done.stdout
    with pytest.raises(AttributeError, match="Nothing"):
        pyg.Nothing  # noqa: B018


@pytest.mark.usefixtures("twin_engine")
@pytest.mark.parametrize("name", [n for n in pyg.__all__ if n.endswith("Conv")])
def test_every_ready_class(name: str) -> None:
    sizes = () if name == "AGNNConv" else (X.shape[1], 4, 2)
    conv = getattr(pyg, name)(*sizes)
    assert isinstance(conv, getattr(torch_geometric.nn, name))
    with gnn_backend.profile() as profile:
        got = conv.eval()(X, EDGES)
    assert profile.accelerated == 1 and profile.launches
    with gnn_backend.disabled():
        torch.testing.assert_close(got, conv(X, EDGES), rtol=2e-5, atol=2e-5)

"""Which linear modules a fused layer may apply itself, and which it has to call."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations

import gnn_backend
from gnn_backend.layers.projection import projection_of

LINEAR = "torch.nn.modules.linear.Linear"


class Subclass(nn.Linear):
    pass


class Scaled(torch.Tensor):
    pass


def hooked(register: str) -> nn.Linear:
    linear = nn.Linear(3, 4)
    getattr(linear, register)(lambda *_: None)
    return linear


def with_forward() -> nn.Linear:
    linear = nn.Linear(3, 4)
    linear.forward = lambda x: x  # type: ignore[method-assign]
    return linear


def with_bias(bias: torch.Tensor) -> nn.Linear:
    linear = nn.Linear(3, 4)
    linear.bias = nn.Parameter(bias)
    return linear


def with_subclass() -> nn.Linear:
    linear = nn.Linear(3, 4)
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Scaled))
    return linear


CALLED: dict[str, Callable[[], nn.Module]] = {
    "subclass": lambda: Subclass(3, 4),
    "other": lambda: nn.Identity(),
    "parametrized": lambda: parametrizations.weight_norm(nn.Linear(3, 4)),
    "lazy": lambda: nn.LazyLinear(4),
    "another width": lambda: nn.Linear(3, 5),
    "broadcast bias": lambda: with_bias(torch.zeros(1)),
    "wide bias": lambda: with_bias(torch.zeros(4, dtype=torch.float64)),
    "half": lambda: nn.Linear(3, 4).half(),
    "own forward": with_forward,
    "tensor subclass": with_subclass,
    **{
        register: functools.partial(hooked, register)
        for register in (
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_full_backward_hook",
            "register_full_backward_pre_hook",
        )
    },
}


def test_plain() -> None:
    for bias in (True, False):
        linear = nn.Linear(3, 4, bias=bias)
        found = projection_of(linear, LINEAR, torch.float32, 4)
        assert found is not None
        assert found.weight is linear.weight and found.bias is linear.bias


@pytest.mark.parametrize("kind", CALLED)
def test_called(kind: str) -> None:
    assert projection_of(CALLED[kind](), LINEAR, torch.float32, 4) is None


def test_called_under_autocast() -> None:
    with torch.autocast("cpu"):
        assert projection_of(nn.Linear(3, 4), LINEAR, torch.float32, 4) is None


def test_called_under_global_hooks() -> None:
    handle = torch_module.register_module_forward_hook(lambda *_: None)
    try:
        assert projection_of(nn.Linear(3, 4), LINEAR, torch.float32, 4) is None
    finally:
        handle.remove()
    assert projection_of(nn.Linear(3, 4), LINEAR, torch.float32, 4) is not None


@pytest.mark.parametrize("wrapped", [False, True])
def test_called_where_the_class_was_changed(wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written = nn.Linear.forward

    def twice(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return 2 * written(self, x)

    monkeypatch.setattr(nn.Linear, "forward", functools.wraps(written)(twice) if wrapped else twice)
    assert projection_of(nn.Linear(3, 4), LINEAR, torch.float32, 4) is None


def layer_of(host: str, **options: bool) -> tuple[nn.Module, tuple[object, object]]:
    """A layer of a host, and its arguments."""
    x, source, destination = torch.randn(7, 6), torch.arange(12) % 7, (torch.arange(12) * 3) % 7
    if host == "pyg":
        layer = pytest.importorskip("torch_geometric.nn").GATv2Conv(6, 4, heads=2, **options)
        return layer, (x, torch.stack([source, destination]))
    dgl = pytest.importorskip("dgl")
    layer = pytest.importorskip("dgl.nn").GATv2Conv(6, 4, 2, allow_zero_in_degree=True, **options)
    return layer, (dgl.graph((source, destination), num_nodes=7), x)


@pytest.mark.parametrize("options", [{}, {"share_weights": True}, {"residual": True}])
@pytest.mark.parametrize("host", ["pyg", "dgl"])
def test_a_layer_is_one_autograd_node(host: str, options: dict[str, bool]) -> None:
    layer, arguments = layer_of(host, **options)
    with gnn_backend.enabled(mode="strict"):
        out = layer(*arguments)
    assert out.grad_fn.name() == "_ProjectedAttentionBackward"


@pytest.mark.parametrize("host", ["pyg", "dgl"])
def test_what_broadcasts_is_taken_as_by_stock(host: str) -> None:
    layer, arguments = layer_of(host)
    first = layer.lin_l if host == "pyg" else layer.fc_src
    first.bias = nn.Parameter(torch.ones(1))
    if host == "pyg":
        layer.bias = nn.Parameter(torch.ones(1))
    want = layer(*arguments)
    with gnn_backend.enabled(mode="strict"):
        got = layer(*arguments)
    torch.testing.assert_close(got, want)
    got.sum().backward()
    assert first.bias.grad.shape == (1,)


@pytest.mark.parametrize("host", ["pyg", "dgl"])
def test_hooks_on_a_layers_projections_run(host: str) -> None:
    """The layer stays fused; its projection is called as a module, and its hook has its way."""
    layer, arguments = layer_of(host)
    name = "lin_l" if host == "pyg" else "fc_src"
    plain = layer(*arguments)
    getattr(layer, name).register_forward_hook(lambda module, inputs, out: 2 * out)
    want = layer(*arguments)
    assert not torch.allclose(want, plain)
    with gnn_backend.enabled(mode="strict"):
        torch.testing.assert_close(layer(*arguments), want)

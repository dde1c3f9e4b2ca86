"""What has no fused path runs the stock code, is counted with its reason, and stays right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from gnn_backend import config
from gnn_backend.adapters.pyg import conv as adapter
from gnn_backend.errors import StrictFallbackError
from tests.adapters.pyg.helpers import edges, falls_back, fused, normal

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

N, F = 12, 6
X, EDGES = normal(N, F), edges(N, N)


def layer(**arguments: Any) -> GATv2Conv:
    torch.manual_seed(0)
    return GATv2Conv(F, 4, heads=2, **arguments)


class OwnMessage(GATv2Conv):
    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return 2 * x_j * alpha.unsqueeze(-1)


class OwnAggregate(GATv2Conv):
    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
        return 3 * super().aggregate(inputs, index, dim_size=dim_size)


class OwnUpdate(GATv2Conv):
    def update(self, inputs: Tensor) -> Tensor:
        return inputs.relu()


class OwnEdgeUpdate(GATv2Conv):
    def edge_update(self, x_j: Tensor, x_i: Tensor, index: Tensor) -> Tensor:
        return (x_i * x_j).sum(-1).sigmoid()


class OwnPropagate(GATv2Conv):
    def propagate(self, edge_index: Tensor, x: Any, alpha: Tensor, size: Any = None) -> Tensor:
        return x[1] * 2


def hooked(register: str) -> GATv2Conv:
    conv = layer()
    getattr(conv, register)(lambda *_: None)
    return conv


def with_attribute(name: str, value: Any) -> GATv2Conv:
    conv = layer()
    setattr(conv, name, value)
    return conv


def explaining() -> GATv2Conv:
    conv = layer()
    conv._edge_mask = torch.zeros(EDGES.shape[1])
    conv._loop_mask = EDGES[0] != EDGES[1]
    conv.explain = True
    return conv


def other_message_on_instance() -> GATv2Conv:
    conv = layer()
    conv.message = lambda x_j, alpha: x_j
    return conv


def forward_hook_on_aggregation() -> GATv2Conv:
    conv = layer()
    conv.aggr_module.register_forward_hook(lambda module, inputs, out: 2 * out)
    return conv


LAYERS = [
    ("overridden-message", lambda: OwnMessage(F, 4)),
    ("overridden-message", lambda: OwnAggregate(F, 4)),
    ("overridden-message", lambda: OwnUpdate(F, 4)),
    ("overridden-message", lambda: OwnEdgeUpdate(F, 4)),
    ("overridden-message", lambda: OwnPropagate(F, 4)),
    ("overridden-message", other_message_on_instance),
    ("explain-on", explaining),
    ("hooks", lambda: hooked("register_propagate_forward_pre_hook")),
    ("hooks", lambda: hooked("register_propagate_forward_hook")),
    ("hooks", lambda: hooked("register_message_forward_hook")),
    ("hooks", lambda: hooked("register_aggregate_forward_hook")),
    ("hooks", lambda: hooked("register_edge_update_forward_pre_hook")),
    ("hooks", forward_hook_on_aggregation),
    ("aggr-changed", lambda: layer(aggr="mean")),
    ("aggr-changed", lambda: layer(aggr=["sum", "max"], concat=False, bias=False)),
    ("parametrized", lambda: with_attribute("negative_slope", torch.tensor(0.2))),
    ("parametrized", lambda: with_attribute("att", torch.nn.Parameter(torch.ones(1, 2, 1)))),
]


@pytest.mark.filterwarnings("ignore:.*should define a dim_size")
@pytest.mark.parametrize(("reason", "make"), LAYERS)
def test_layer(reason: str, make: Any) -> None:
    torch.manual_seed(0)
    conv = make()
    torch.manual_seed(1)
    want = conv(X, EDGES)
    torch.manual_seed(1)
    with falls_back(reason):
        got = conv(X, EDGES)
    assert torch.equal(got, want)
    with gnn_backend.enabled(mode="strict"), pytest.raises(StrictFallbackError, match=reason):
        conv(X, EDGES)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_adjacency_with_edge_features() -> None:
    conv = layer(edge_dim=3, add_self_loops=False)
    adj_t = torch.sparse_coo_tensor(EDGES, normal(EDGES.shape[1], 3), (N, N, 3)).coalesce()
    want = conv(X, adj_t)
    with falls_back("edge-features"):
        assert torch.equal(conv(X, adj_t), want)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_returned_attention_of_a_sparse_adjacency() -> None:
    """Its order is PyG's own."""
    conv = layer(add_self_loops=False)
    adj_t = torch.sparse_coo_tensor(EDGES, torch.ones(EDGES.shape[1]), (N, N)).coalesce()
    want = conv(X, adj_t, None, True)
    with falls_back("returns-attention"):
        got = conv(X, adj_t, return_attention_weights=True)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1][1], want[1][1])


def test_settings_are_read_on_each_call() -> None:
    conv = layer()
    with fused():
        conv(X, EDGES)
    handle = conv.register_message_forward_hook(lambda *_: None)
    with falls_back("hooks"):
        conv(X, EDGES)
    handle.remove()
    conv.decomposed_layers = 2
    assert adapter.eligible(conv, X, EDGES) == "decomposed"
    for acceleration in (gnn_backend.disabled(), gnn_backend.enabled()):
        with acceleration, pytest.raises(AttributeError, match="chunk"):
            conv(X, EDGES)  # PyG cannot split the features of this layer
    conv.decomposed_layers = 1  # leaves a bound method on the instance
    with fused():
        conv(X, EDGES)


def test_reversed_flow_between_unequal_sets() -> None:
    conv = GATv2Conv((F, F), 4, flow="target_to_source", add_self_loops=False)
    x = (normal(9, F), normal(5, F))
    reverse = edges(9, 5).flip(0)
    want = conv(x, reverse % 5)
    with falls_back("flow"):
        assert torch.equal(conv(x, reverse % 5), want)


def test_forward_mode_and_functorch() -> None:
    conv = layer()
    with falls_back("transforms"):
        torch.func.jvp(lambda x: conv(x, EDGES), (X,), (torch.ones_like(X),))
    with falls_back("transforms"):
        torch.func.grad(lambda x: conv(x, EDGES).sum())(X)
    with falls_back("transforms"), torch.autograd.forward_ad.dual_level():
        conv(torch.autograd.forward_ad.make_dual(X, torch.ones_like(X)), EDGES)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_tracing_records_the_stock_operators() -> None:
    conv = layer()
    with falls_back("scripted"):
        traced = torch.jit.trace(conv, (X, EDGES), check_trace=False)
    other = normal(N, F, seed=5)
    assert torch.allclose(traced(other, EDGES), conv(other, EDGES), atol=1e-6)


def test_unsupported_tensors() -> None:
    class Tagged(torch.Tensor):
        pass

    conv = layer()
    with falls_back("subclass"):
        conv(X.as_subclass(Tagged), EDGES)
    with falls_back("graph-type"):
        conv(X, EDGES.as_subclass(Tagged))
    with falls_back("device"):
        conv = layer(add_self_loops=False).to("meta")
        assert conv(X.to("meta"), EDGES.to("meta")).shape == (N, 8)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_uncoalesced_adjacency() -> None:
    conv = layer()
    adj_t = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(EDGES.shape[1]), (N, N))
    want = conv(X, adj_t.clone())
    with falls_back("graph-type"):
        got = conv(X, adj_t)
    assert torch.equal(got, want)
    with gnn_backend.enabled(), pytest.raises(RuntimeError, match="uncoalesced"):
        layer(add_self_loops=False)(
            X, torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(EDGES.shape[1]), (N, N))
        )


@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensor_fill_value_on_an_adjacency() -> None:
    conv = layer(fill_value=torch.tensor([1.0]))
    adj_t = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(EDGES.shape[1]), (N, N)).coalesce()
    with falls_back("fill-value"):
        conv(X, adj_t)
    with fused():
        conv(X, EDGES)
    conv.add_self_loops = False
    with fused(calls=2):
        conv(X, adj_t)
        conv.fill_value = torch.tensor([2.0])
        conv(X, adj_t)


def test_small_graphs_on_request() -> None:
    conv = layer()
    with config.override(min_edges=EDGES.shape[1] + 1), falls_back("too-small"):
        conv(X, EDGES)
    with config.override(min_edges=EDGES.shape[1]), fused():
        conv(X, EDGES)


def test_node_dim() -> None:
    conv = with_attribute("node_dim", -3)
    with falls_back("node-dim"):
        conv(X, EDGES)


def test_patched_stock_class(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = layer()
    monkeypatch.setattr(GATv2Conv, "message", lambda self, x_j, alpha: x_j)
    want = conv(X, EDGES)
    with falls_back("overridden-message"):
        assert torch.equal(conv(X, EDGES), want)


def test_harmless_subclass_is_fused() -> None:
    class Named(GATv2Conv):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(x, edge_index).relu()

    torch.manual_seed(0)
    conv = Named(F, 4)
    want = conv(X, EDGES)
    with fused():
        assert torch.allclose(conv(X, EDGES), want, atol=1e-6)


@pytest.mark.parametrize(
    ("cls", "width", "edge_dim", "reason"),
    [
        (GATConv, 1025, None, "head-dim"),
        (GATv2Conv, 1025, None, "head-dim"),
        (TransformerConv, 1025, None, "head-dim"),
        (TransformerConv, 4, 1025, "edge-dim"),
    ],
)
def test_what_is_too_wide_drops_what_stock_drops(
    cls: type, width: int, edge_dim: int | None, reason: str
) -> None:
    conv = cls(F, width, heads=2, dropout=0.5, edge_dim=edge_dim)
    features = None if edge_dim is None else normal(EDGES.shape[1], edge_dim)
    torch.manual_seed(1)
    want = conv(X, EDGES, features)
    torch.manual_seed(1)
    with falls_back(reason):
        assert torch.equal(conv(X, EDGES, features), want)


@pytest.mark.parametrize("sizes", [(4, 0), (0, 2)])
def test_no_heads_or_channels_give_the_stock_error(sizes: tuple[int, int]) -> None:
    conv = GATv2Conv(F, sizes[0], heads=sizes[1])
    with gnn_backend.enabled(hosts="pyg"), pytest.raises(RuntimeError, match="cannot reshape"):
        conv(X, EDGES)

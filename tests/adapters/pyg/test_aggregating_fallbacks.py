"""What an aggregating layer does not take fused runs the stock code under its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from gnn_backend import config

pytest.importorskip("torch_geometric")
import torch_geometric.nn as nn
from torch_geometric.nn import aggr

from gnn_backend.adapters.pyg import cache
from tests.adapters.attention import check_equals_stock
from tests.adapters.pyg.aggregating import LAYERS, WIDTH, build, call
from tests.adapters.pyg.helpers import edges, falls_back, fused, normal

N = 12
X, EDGES = normal(N, WIDTH), edges(N, N)
WEIGHT = normal(EDGES.shape[1], seed=2).abs()

pytestmark = pytest.mark.usefixtures("twin_aggregation")


class OwnMessage(nn.GCNConv):
    def message(self, x_j: Tensor, edge_weight: Tensor | None) -> Tensor:
        return 2 * x_j


class OwnUpdate(nn.SAGEConv):
    def update(self, inputs: Tensor) -> Tensor:
        return inputs.relu()


class OwnNorm(nn.ChebConv):
    def __norm__(self, *args: Any, **kwargs: Any) -> Any:
        edge_index, norm = super().__norm__(*args, **kwargs)
        return edge_index, 2 * norm


class OwnForward(aggr.SumAggregation):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return 2 * super().forward(*args, **kwargs)


class Renamed(aggr.MaxAggregation):
    pass


def hooked(register: str) -> nn.GCNConv:
    conv = nn.GCNConv(WIDTH, 4)
    getattr(conv, register)(lambda *_: None)
    return conv


def explaining() -> nn.SAGEConv:
    conv = nn.SAGEConv(WIDTH, 4)
    conv._edge_mask = torch.zeros(EDGES.shape[1])
    conv.explain = True
    return conv


def watched_part() -> nn.SAGEConv:
    conv = nn.SAGEConv(WIDTH, 4, aggr=["max", "min"])
    conv.aggr_module.aggrs[1].register_forward_hook(lambda *_: None)
    return conv


def sage(aggregation: Any, **options: Any) -> Callable[[], nn.SAGEConv]:
    return lambda: nn.SAGEConv(WIDTH, 4, aggr=aggregation, **options)


def pna(**options: Any) -> nn.PNAConv:
    histogram = torch.bincount(torch.bincount(EDGES[1]))
    options.setdefault("aggregators", ["mean"])
    return nn.PNAConv(WIDTH, 4, scalers=["identity"], deg=histogram, **options)


LAYER_REASONS: list[tuple[str, Callable[[], torch.nn.Module]]] = [
    ("overridden-message", lambda: OwnMessage(WIDTH, 4)),
    ("overridden-message", lambda: OwnUpdate(WIDTH, 4)),
    ("overridden-message", lambda: OwnNorm(WIDTH, 4, K=2)),
    ("explain-on", explaining),
    ("hooks", lambda: hooked("register_propagate_forward_hook")),
    ("hooks", lambda: hooked("register_message_forward_pre_hook")),
    ("hooks", watched_part),
    ("decomposed", lambda: nn.GCNConv(WIDTH, 4, decomposed_layers=2)),
    ("aggregation", sage("median")),
    ("aggregation", sage("lstm")),
    ("aggregation", sage(aggr.SoftmaxAggregation(semi_grad=True))),
    ("aggregation", sage(aggr.VarAggregation(semi_grad=True))),
    ("aggregation", sage(aggr.PowerMeanAggregation(p=2.0, clamp_max=50.0))),
    ("aggregation", sage(["max", "median"])),
    ("aggregation", sage(["mean", "mean"])),
    ("aggregation", sage(OwnForward())),
    ("aggregation", lambda: pna(aggregators=["mul"])),
    ("aggr-changed", lambda: nn.LEConv(WIDTH, 4, aggr="max")),
    ("pre-layers", lambda: pna(pre_layers=2)),
    ("no-operators", lambda: nn.ChebConv(WIDTH, 4, K=1)),
]


@pytest.mark.filterwarnings("ignore:.*should define a dim_size")
@pytest.mark.parametrize(("reason", "make"), LAYER_REASONS)
def test_layer(reason: str, make: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    conv = make()
    order = EDGES[1].argsort()  # lstm and median want sorted edges
    want = conv(X, EDGES[:, order])
    with falls_back(reason):
        assert torch.equal(conv(X, EDGES[:, order]), want)


def adjacency() -> Tensor:
    values = torch.ones(EDGES.shape[1])
    return torch.sparse_coo_tensor(EDGES.flip(0), values, (N, N)).coalesce().to_sparse_csr()


CALL_REASONS: list[tuple[str, Callable[[], torch.nn.Module], tuple[Any, ...]]] = [
    ("adjacency", lambda: nn.GCNConv(WIDTH, 4), (X, adjacency())),
    ("input-form", lambda: nn.GCNConv(WIDTH, 4), (normal(2, N, WIDTH), EDGES)),
    ("input-form", lambda: nn.SAGEConv(WIDTH, 4), ((X, None), EDGES)),
    ("flow", lambda: nn.SAGEConv(WIDTH, 4, flow="target_to_source"), ((X, X), EDGES)),
    ("edge-features", lambda: nn.GraphConv(WIDTH, 4), (X, EDGES, WEIGHT.view(-1, 1))),
    ("dtype-unsupported", lambda: nn.GINConv(torch.nn.Identity()), (X.long(), EDGES)),
]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(("reason", "make", "args"), CALL_REASONS)
def test_call(reason: str, make: Callable[[], torch.nn.Module], args: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    conv = make()
    want = conv(*args)
    with falls_back(reason):
        assert torch.equal(conv(*args), want)


def test_small_graphs_on_request() -> None:
    with config.override(min_edges=EDGES.shape[1] + 1), falls_back("too-small"):
        nn.GCNConv(WIDTH, 4)(X, EDGES)


def test_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise gnn_backend.errors.Unsupported("no-cupy")

    monkeypatch.setattr("gnn_backend.runtime.launch.aggregation_engine", none)
    with falls_back("no-cupy"):
        nn.GCNConv(WIDTH, 4)(X, EDGES)


def test_transforms() -> None:
    conv = nn.GCNConv(WIDTH, 4)
    with falls_back("transforms"):
        torch.func.grad(lambda x: conv(x, EDGES).sum())(X)


def test_a_subclass_that_changes_nothing_is_fused() -> None:
    check_equals_stock(sage(Renamed())(), "pyg", X, EDGES)


BAD: dict[str, tuple[Callable[[], torch.nn.Module], tuple[Any, ...]]] = {
    "float edges": (lambda: nn.SAGEConv(WIDTH, 4), (X, EDGES.float())),
    "three rows": (lambda: nn.SAGEConv(WIDTH, 4), (X, EDGES[[0, 1, 1]])),
    "out of range": (lambda: nn.SAGEConv(WIDTH, 4), (X[:4], EDGES)),
    "too few weights": (lambda: nn.GraphConv(WIDTH, 4), (X, EDGES, WEIGHT[:3])),
    "a pair": (lambda: nn.GCNConv(WIDTH, 4), ((X, X), EDGES)),
    "wrong size": (lambda: nn.GINConv(torch.nn.Identity()), (X, EDGES, (N, N + 1))),
    "no features": (lambda: nn.GINEConv(torch.nn.Identity()), (X, EDGES)),
    "narrow features": (lambda: nn.GINEConv(torch.nn.Identity()), (X, EDGES, WEIGHT[:, None])),
    "wide": (lambda: nn.GatedGraphConv(4, 1), (X, EDGES)),
    "features without edge_dim": (lambda: pna(), (X, EDGES, WEIGHT[:, None])),
    "edge_dim without features": (lambda: pna(edge_dim=2), (X, EDGES)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_the_stock_error(case: str) -> None:
    make, args = BAD[case]
    conv = make()
    with pytest.raises(Exception) as stock:
        conv(*args)
    with gnn_backend.enabled(hosts="pyg"), pytest.raises(Exception) as ours:
        conv(*args)
    assert (type(ours.value), str(ours.value)) == (type(stock.value), str(stock.value))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    c = {k: v[0] for k, v in LAYERS[name].choices.items()} | {"train_eps": True, "cached": False}
    c = {k: v for k, v in c.items() if k in LAYERS[name].choices} | {"aggr": "add"}
    if name == "PNAConv":
        c |= {"aggregators": ["mean", "max"]}
        del c["aggr"]
    if name == "ClusterGCNConv" and dtype is torch.bfloat16:
        pytest.skip("PyG's weights are float32, which its linear map does not take")
    x, edge_index, options = call(name, c, dtype)
    check_equals_stock(build(name, c).to(dtype), "pyg", x, edge_index, **options)


@pytest.mark.parametrize("name", LAYERS)
def test_autocast(name: str) -> None:
    c = {k: v[-1] if k == "weight" else v[0] for k, v in LAYERS[name].choices.items()}
    x, edge_index, options = call(name, c)
    conv = build(name, c)
    with torch.autocast("cpu", torch.bfloat16):
        want = conv(x, edge_index, **options)
        with gnn_backend.enabled(mode="strict", hosts="pyg"):
            got = conv(x, edge_index, **options)
    assert got.dtype == want.dtype
    assert torch.allclose(got.float(), want.float(), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("name", LAYERS)
def test_verify(name: str) -> None:
    c = {k: v[-1] if k in ("weight", "dropout") else v[0]
         for k, v in LAYERS[name].choices.items()}  # fmt: skip
    x, edge_index, options = call(name, c)
    with gnn_backend.enabled(mode="verify", hosts="pyg"), gnn_backend.profile() as profile:
        build(name, c)(x, edge_index, **options)
    assert profile.accelerated == 1


@pytest.mark.parametrize("cls", [nn.GCNConv, nn.SGConv, nn.APPNP])
def test_cached_layers_keep_what_stock_keeps(cls: Any) -> None:
    sizes = {"K": 2, "alpha": 0.1} if cls is nn.APPNP else {"in_channels": WIDTH, "out_channels": 4}
    if cls is nn.SGConv:
        sizes["K"] = 2
    conv = cls(**sizes, cached=True)
    with fused(2):
        first = conv(X, EDGES)
        again = conv(X, EDGES.flip(0))  # the first edges are used
    assert torch.equal(first, again) or torch.allclose(first, again)
    assert torch.allclose(conv(X, EDGES.flip(0)), first, atol=1e-6)
    conv.reset_parameters()
    assert getattr(conv, "_cached_edge_index", None) is None
    assert getattr(conv, "_cached_x", None) is None


def test_normalisation_is_computed_once_and_follows_edits() -> None:
    conv, edge_index, weight = nn.GCNConv(WIDTH, 4), EDGES.clone(), WEIGHT.clone()
    calls = []
    real = gnn_backend.layers.scaled_adjacency.streamed

    def counted(*args: Any) -> Any:
        calls.append(1)
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gnn_backend.adapters.pyg.normalization.streamed", counted)
        with fused(3):
            conv(X, edge_index, weight)
            conv(X, edge_index, weight)
            assert len(calls) == 1
            weight[3] = 5.0
            got = conv(X, edge_index, weight)
        assert len(calls) == 2
    assert torch.allclose(got, conv(X, edge_index, weight), atol=1e-6)
    with fused():
        edge_index[:, 0] = torch.tensor([7, 2])
        got = conv(X, edge_index)
    assert torch.allclose(got, conv(X, edge_index), atol=1e-6)
    cache.clear_cache()


@pytest.mark.parametrize("weighted", [False, True])
def test_inference_mode_then_training(weighted: bool) -> None:
    conv, edge_index = nn.GCNConv(WIDTH, 4), EDGES.clone()
    args = (WEIGHT.clone(),) if weighted else ()
    with torch.inference_mode(), gnn_backend.enabled(mode="strict", hosts="pyg"):
        conv(X, edge_index, *args)
    check_equals_stock(conv, "pyg", X, edge_index, *args)


def test_order_of_map_and_aggregation() -> None:
    """The narrower side is aggregated: widths that reach the operator tell."""
    from gnn_backend.layers import scaled_adjacency

    widths = []
    real = scaled_adjacency.aggregate

    def seen(graph: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        widths.append(x.shape[1])
        return real(graph, x, *args, **kwargs)

    x = X.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaled_adjacency, "aggregate", seen)
        with fused(4):
            nn.GCNConv(WIDTH, 2)(x, EDGES)
            nn.GCNConv(WIDTH, 32)(x, EDGES)
            nn.SAGEConv(WIDTH, 2)(x, EDGES)
            nn.SAGEConv(WIDTH, 32)(x, EDGES)
    assert widths == [2, WIDTH, 2, WIDTH]


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "ChebConv", "PNAConv"])
def test_compiled_layers_are_stock(name: str) -> None:
    c = {k: v[0] for k, v in LAYERS[name].choices.items()}
    conv, (x, edge_index, options) = build(name, c), call(name, c)
    want = conv(x, edge_index, **options)
    torch.compiler.reset()
    with gnn_backend.enabled(hosts="pyg"), gnn_backend.profile() as profile:
        got = torch.compile(conv, backend="eager")(x, edge_index, **options)
    assert torch.allclose(got, want, atol=1e-6)
    assert not profile.launches

"""``HeteroConv``: results and all gradients as stock's, over all relations at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("torch_geometric", reason="PyG is not installed")
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, HeteroConv, SAGEConv

import gnn_backend
from gnn_backend import config
from gnn_backend.adapters.pyg import hetero_conv
from gnn_backend.adapters.pyg.unions import unions
from gnn_backend.adapters.tensor_cache import TensorCache
from tests.adapters.attention import check_equals_stock
from tests.adapters.grid.covering import pairwise
from tests.adapters.hetero import SIZES, Wrapped, operations, randomized, relations
from tests.adapters.pyg.helpers import normal

WIDTH = 6
Make = Callable[[], nn.Module]

#: Layers, and whether their relations may have two ends of different types.
CONVS: dict[str, tuple[Make, bool]] = {
    "GCNConv": (lambda: GCNConv(WIDTH, 4), False),
    "GCNConv no loops": (lambda: GCNConv(WIDTH, 4, add_self_loops=False, bias=False), False),
    "GCNConv plain": (lambda: GCNConv(WIDTH, 4, normalize=False), False),
    "GraphConv": (lambda: GraphConv(WIDTH, 4), True),
    "GraphConv mean": (lambda: GraphConv((WIDTH, WIDTH), 4, aggr="mean", bias=False), True),
    "GraphConv min": (lambda: GraphConv(WIDTH, 4, aggr="min"), True),
    "SAGEConv": (lambda: SAGEConv(WIDTH, 4), True),
    "SAGEConv max": (lambda: SAGEConv(WIDTH, 4, aggr="max", root_weight=False), True),
    "SAGEConv all": (lambda: SAGEConv(WIDTH, 4, normalize=True, project=True), True),
    "GATConv": (lambda: GATConv(WIDTH, 4, 2, add_self_loops=False), True),
    "GATConv loops": (lambda: GATConv(WIDTH, 4, 2, concat=False, residual=True), False),
    "GATConv two": (
        lambda: GATConv((WIDTH, WIDTH), 4, add_self_loops=False, residual=True), True),
    "GATv2Conv": (lambda: GATv2Conv(WIDTH, 4, 2, add_self_loops=False, residual=True), True),
    "GATv2Conv loops": (lambda: GATv2Conv(WIDTH, 4, 2, concat=False, share_weights=True), False),
}  # fmt: skip
CHOICES: dict[str, list[Any]] = {
    "conv": list(CONVS),
    "aggr": ["sum", "mean", "max", "min", "cat", None],
    "dtype": [torch.float32, torch.float64],
}


def wrapped(conv: str, aggr: str | None = "sum", count: int = 6) -> Wrapped:
    make, pairs = CONVS[conv]
    edges = dict(relations(count, square=not pairs))
    wrapper = HeteroConv({relation: make() for relation in edges}, aggr)

    def call(wrapper: nn.Module, given: list[Tensor]) -> dict[str, Tensor]:
        return wrapper(dict(zip(SIZES, given, strict=True)), edges)  # type: ignore[no-any-return]

    return Wrapped(randomized(wrapper), call)


def features(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [normal(n, WIDTH, seed=i, dtype=dtype) for i, n in enumerate(SIZES.values())]


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
@pytest.mark.parametrize(
    "c", pairwise(CHOICES, lambda c: True), ids=lambda c: "-".join(map(str, c.values()))
)
def test_equals_stock(c: dict[str, Any]) -> None:
    module = wrapped(c["conv"], c["aggr"]).to(c["dtype"])
    check_equals_stock(module, "pyg", *features(c["dtype"]))


@pytest.mark.parametrize("conv", ["GCNConv", "GATv2Conv"])
def test_equals_stock_on_kernels(conv: str) -> None:
    check_equals_stock(wrapped(conv, count=4), "pyg", *features())


@pytest.mark.parametrize("conv", ["GraphConv mean", "GATConv"])
def test_equals_stock_on_the_emulator(conv: str) -> None:
    with config.override(cpu_target="emulator"):
        check_equals_stock(wrapped(conv, count=3), "pyg", *features())


@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
@pytest.mark.parametrize("conv", ["GCNConv", "SAGEConv max", "GATConv loops"])
def test_operations_do_not_grow_with_relations(conv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for number in (4, 60):
        module, given = wrapped(conv, count=number), features()
        parameters = [*module.parameters()]

        def step(module: Any = module, given: Any = given, of: Any = parameters) -> None:
            torch.autograd.grad(sum(out.sum() for out in module(*given)), of)

        with gnn_backend.enabled(hosts="pyg", mode="strict"):
            step()  # what is kept with the edges is made
            counts.append(operations(step, monkeypatch))
    (launches, few), (more, many) = counts
    assert launches == more
    assert few == many, {n: (few[n], many[n]) for n in few | many if few[n] != many[n]}
    assert launches and few["typed_linear"]


def call_of(*convs: Make) -> tuple[Any, dict[str, Tensor], dict[Any, Tensor]]:
    edges = dict(relations(5))
    layers = {k: convs[i % len(convs)]() for i, k in enumerate(edges)}
    return HeteroConv(layers), dict(zip(SIZES, features(), strict=True)), edges


SAGE: Make = lambda: SAGEConv(WIDTH, 4)  # noqa: E731


class Doubled(SAGEConv):
    def message(self, x_j: Tensor) -> Tensor:
        return 2 * x_j


def hooked() -> nn.Module:
    conv = SAGEConv(WIDTH, 4)
    conv.register_message_forward_hook(lambda *_: None)
    return conv


@pytest.mark.usefixtures("twin_aggregation")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: GINConv(nn.Linear(WIDTH, 4)), "relation-modules"),
        (lambda: Doubled(WIDTH, 4), "relation-modules"),
        (lambda: SAGEConv(WIDTH, 4, aggr="median"), "aggregation"),
        (lambda: SAGEConv(-1, 4), "lazy"),
        (hooked, "hooks"),
        (SAGE, None),
    ],
)
def test_layers_decide(make: Make, reason: str | None) -> None:
    assert hetero_conv.eligible(*call_of(SAGE, make)) == reason


@pytest.mark.usefixtures("twin_aggregation")
def test_arguments_decide() -> None:
    layer, x, edges = call_of(SAGE)
    eligible = hetero_conv.eligible
    assert eligible(layer, x_dict=x, edge_index_dict=edges) is None
    assert eligible(layer, x, edges, size_dict={}) == "relation-arguments"
    assert eligible(layer, {"a": x["a"]}, edges) == "input-form"
    assert eligible(layer, x | {"a": x["a"].double()}, edges) == "dtype-mixed"
    sparse = {k: e.to_sparse() for k, e in edges.items()}
    assert eligible(layer, x, sparse) == "adjacency"
    assert eligible(layer, x, {}) == "empty"


@pytest.mark.usefixtures("twin_aggregation")
def test_an_edited_edge_is_seen_and_a_freed_one_frees() -> None:
    layer, x, edges = call_of(SAGE)
    unions.clear()
    with gnn_backend.enabled(hosts="pyg", mode="strict"):
        layer(x, edges)
        held = unions.nbytes()
        layer(x, edges)
        assert unions.nbytes() == held > 0
        relation = next(iter(edges))
        edges[relation][0, 0] = (edges[relation][0, 0] + 1) % 9
        got = layer(x, edges)
    for target, want in layer(x, edges).items():
        torch.testing.assert_close(got[target], want)
    edges.clear()
    gc.collect()
    assert unions.nbytes() == 0


@pytest.mark.usefixtures("twin_aggregation")
def test_an_edge_out_of_range_is_no_edge_of_another_type() -> None:
    layer, x, edges = call_of(SAGE)
    edges["a", "r0", "a"][0, 0] = SIZES["a"]  # the first node of the next type
    with gnn_backend.enabled(hosts="pyg"), pytest.raises((IndexError, RuntimeError, ValueError)):
        layer(x, edges)


def test_the_cache_makes_a_union_once() -> None:
    made: list[int] = []
    cache, edges = TensorCache[Any](), [torch.zeros(2, 1, dtype=torch.int64)]

    def make() -> Any:
        made.append(1)
        return object()

    assert cache.get(edges, "key", make) is cache.get(edges, "key", make)
    cache.get([edges[0], edges[0].clone()], "key", make)
    assert len(made) == 2

"""``HeteroGraphConv``: results and all gradients as stock's, over all relations at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.nn import pytorch as layers

import gnn_backend
from gnn_backend.adapters.dgl import cached_bytes, hetero_conv
from gnn_backend.layers.hetero.union import Union
from tests.adapters.attention import check_equals_stock
from tests.adapters.dgl.aggregation import name
from tests.adapters.grid.covering import pairwise
from tests.adapters.hetero import SIZES, Wrapped, operations, randomized, relations
from tests.adapters.pyg.helpers import normal

WIDTH = 6
Make = Callable[[], nn.Module]


def largest(results: list[Tensor], target: str) -> Tensor:
    """A user's function, for which the order of relations matters."""
    return results[0] + 2 * torch.stack(results).amax(0) + len(target)


CONVS: dict[str, Make] = {
    **{
        f"GraphConv {norm}": lambda norm=norm: layers.GraphConv(WIDTH, 4, norm=norm)
        for norm in ("both", "left", "right", "none")
    },
    "GraphConv relu": lambda: layers.GraphConv(WIDTH, 4, bias=False, activation=torch.relu),
    "SAGEConv mean": lambda: layers.SAGEConv(WIDTH, 4, "mean", activation=torch.tanh),
    "SAGEConv gcn": lambda: layers.SAGEConv(WIDTH, 4, "gcn"),
    "SAGEConv pool": lambda: layers.SAGEConv(WIDTH, 4, "pool", bias=False),
    "GATConv": lambda: layers.GATConv(WIDTH, 4, 2),
    "GATConv two": lambda: layers.GATConv((WIDTH, WIDTH), 4, 2, residual=True),
    "GATConv own": lambda: layers.GATConv(WIDTH, 3, 2, residual=True, activation=torch.relu),
    "GATv2Conv": lambda: layers.GATv2Conv(WIDTH, 4, 2, residual=True),
    "GATv2Conv shared": lambda: layers.GATv2Conv(WIDTH, 3, 2, residual=True, share_weights=True),
}
CHOICES: dict[str, list[Any]] = {
    "conv": list(CONVS),
    "aggregate": ["sum", "mean", "max", "min", "stack", largest],
    "graph": ["whole", "block", "block pair"],
    "dtype": [torch.float32, torch.float64],
}
COMBINATIONS = pairwise(CHOICES, lambda c: True)


def make_graph(kind: str, count: int = 6, *, empty: bool = True) -> Any:
    edges = {
        relation: tuple(ends)
        for relation, ends in relations(count)
        if empty or ends.numel()  # stock's pooling gives a relation without edges a gradient
    }
    graph = dgl.heterograph(edges, num_nodes_dict=SIZES)
    return graph if kind == "whole" else dgl.to_block(graph, include_dst_in_src=True)


def wrapped(graph: Any, conv: Make, aggregate: Any = "sum", *, pair: bool = False) -> Wrapped:
    wrapper = layers.HeteroGraphConv({n: conv() for n in graph.etypes}, aggregate)
    counts = [graph.num_dst_nodes(n) for n in graph.dsttypes]

    def call(wrapper: nn.Module, given: list[Tensor]) -> dict[str, Tensor]:
        inputs: Any = dict(zip(graph.srctypes, given, strict=True))
        if pair:
            heads = [2 * x[:n] for x, n in zip(given, counts, strict=True)]
            inputs = inputs, dict(zip(graph.dsttypes, heads, strict=True))
        return wrapper(graph, inputs)  # type: ignore[no-any-return]

    return Wrapped(randomized(wrapper), call)


def features(graph: Any, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [normal(graph.num_src_nodes(n), WIDTH, seed=i, dtype=dtype)
            for i, n in enumerate(graph.srctypes)]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
@pytest.mark.parametrize("c", COMBINATIONS, ids=name)
def test_equals_stock(c: dict[str, Any]) -> None:
    kind, *pair = c["graph"].split()
    graph = make_graph(kind, empty="pool" not in c["conv"])
    module = wrapped(graph, CONVS[c["conv"]], c["aggregate"], pair=bool(pair)).to(c["dtype"])
    check_equals_stock(module, "dgl", *features(graph, c["dtype"]))


@pytest.mark.parametrize("conv", ["GraphConv both", "GATConv", "GATv2Conv"])
def test_equals_stock_on_kernels(conv: str) -> None:
    graph = make_graph("whole", 4)
    check_equals_stock(wrapped(graph, CONVS[conv]), "dgl", *features(graph))


@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
@pytest.mark.parametrize("conv", ["GraphConv both", "SAGEConv pool", "GATConv two", "GATv2Conv"])
def test_operations_do_not_grow_with_relations(conv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for number in (4, 60):
        graph = make_graph("whole", number)
        module, given = wrapped(graph, CONVS[conv]), features(graph)
        parameters = [*module.parameters()]

        def step(module: Any = module, given: Any = given, of: Any = parameters) -> None:
            torch.autograd.grad(sum(out.sum() for out in module(*given)), of)

        with gnn_backend.enabled(hosts="dgl", mode="strict"):
            step()  # what is kept with the graph is made
            counts.append(operations(step, monkeypatch))
    (launches, few), (more, many) = counts
    assert launches == more
    assert few == many, {n: (few[n], many[n]) for n in few | many if few[n] != many[n]}
    assert launches and few["typed_linear"]


@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
def test_two_kinds_run_as_two_batches() -> None:
    graph = make_graph("whole")
    kinds = iter(["GraphConv both", "SAGEConv mean"] * 3)
    check_equals_stock(wrapped(graph, lambda: CONVS[next(kinds)](), largest), "dgl",
                       *features(graph))  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda w: w.mods["r3"].register_forward_hook(lambda *_: None), "hooks"),
        (lambda w: w.mods["r3"].set_allow_zero_in_degree(False), "zero-in-degree"),
        (lambda w: setattr(w.mods["r3"], "_activation", lambda x: x.softmax(0)), "parametrized"),
        (lambda w: w.mods["r3"].register_parameter("bias", None), None),
        (lambda w: w.mods["r3"].double(), "dtype-mixed"),
    ],
)
@pytest.mark.usefixtures("twin_aggregation")
def test_changes_are_seen(change: Callable[[Any], Any], reason: str | None) -> None:
    graph = make_graph("whole", 5, empty=False)
    wrapper = wrapped(graph, CONVS["GraphConv both"]).wrapper
    inputs = dict(zip(graph.ntypes, features(graph), strict=True))
    assert hetero_conv.eligible(wrapper, graph, inputs) is None
    change(wrapper)
    assert hetero_conv.eligible(wrapper, graph, inputs) == reason


@pytest.mark.usefixtures("twin_aggregation")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: layers.GraphConv(WIDTH, WIDTH, weight=False), "parametrized"),
        (lambda: layers.GINConv(nn.Linear(WIDTH, 4)), "relation-modules"),
        (lambda: layers.SAGEConv(WIDTH, 4, "mean", feat_drop=0.5), "feature-dropout"),
        (lambda: layers.SAGEConv(WIDTH, 4, "lstm"), "aggregation"),
    ],
)
def test_falls_back_for_a_reason(make: Make, reason: str) -> None:
    graph = make_graph("whole", 4, empty=False)
    layer = layers.HeteroGraphConv({n: make() for n in graph.etypes})
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        layer(graph, dict(zip(graph.ntypes, features(graph), strict=True)))
    assert dict(profile.by_symbol["dgl.HeteroGraphConv"].reasons) == {reason: 1}


@pytest.mark.usefixtures("twin_aggregation")
def test_arguments_of_a_relation_fall_back() -> None:
    graph = make_graph("whole", 4, empty=False)
    layer = layers.HeteroGraphConv({n: CONVS["GraphConv both"]() for n in graph.etypes})
    weights = {"r0": {"edge_weight": torch.rand(graph.num_edges("r0"))}}
    inputs = dict(zip(graph.ntypes, features(graph), strict=True))
    want = layer(graph, inputs, mod_kwargs=weights)
    with gnn_backend.enabled(hosts="dgl"), gnn_backend.profile() as profile:
        got = layer(graph, inputs, mod_kwargs=weights)
    assert profile.by_symbol["dgl.HeteroGraphConv"].reasons == {"relation-arguments": 1}
    for target, expected in want.items():
        torch.testing.assert_close(got[target], expected)


@pytest.mark.usefixtures("twin_aggregation")
def test_the_union_is_kept_until_the_graph_changes() -> None:
    graph = make_graph("whole", 4)
    module = layers.HeteroGraphConv({n: CONVS["GraphConv both"]() for n in graph.etypes})
    inputs = dict(zip(graph.ntypes, features(graph), strict=True))

    def kept() -> list[Any]:
        return [v for v in graph._graph._cache.values() if isinstance(v, Union)]

    with gnn_backend.enabled(hosts="dgl"):
        module(graph, inputs)
        (first,) = kept()
        module(graph.local_var(), inputs)
        assert kept() == [first] and cached_bytes(graph) >= first.nbytes() > 0
        graph.add_edges(0, 0, etype="r0")
        assert kept() == []
        out = module(graph, inputs)
    for target, expected in module(graph, inputs).items():
        torch.testing.assert_close(out[target], expected)


@pytest.mark.usefixtures("twin_aggregation")
def test_results_come_in_the_order_of_the_graphs_types() -> None:
    edges = torch.tensor([0, 1]), torch.tensor([1, 0])
    graph = dgl.heterograph({("a", "ab", "b"): edges, ("b", "ba", "a"): edges})
    other = dgl.heterograph({("b", "bb", "b"): edges, ("b", "ba", "a"): edges})
    for given in (graph, other):
        layer = layers.HeteroGraphConv({n: CONVS["SAGEConv mean"]() for n in given.etypes})
        inputs = {n: normal(given.num_nodes(n), WIDTH) for n in given.ntypes}
        want = list(layer(given, inputs))
        with gnn_backend.enabled(hosts="dgl", mode="strict"):
            assert list(layer(given, inputs)) == want


@pytest.mark.usefixtures("twin_aggregation", "twin_engine")
def test_attention_dropout_follows_the_seed() -> None:
    graph = make_graph("whole", 4)
    module = wrapped(graph, lambda: layers.GATConv(WIDTH, 4, 2, attn_drop=0.5))
    given = features(graph)
    with gnn_backend.enabled(hosts="dgl", mode="strict"):
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            runs.append(module(*given)[0])
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    with gnn_backend.enabled(hosts="dgl", mode="verify"), gnn_backend.profile() as profile:
        module(*given)
    assert profile.by_symbol["dgl.HeteroGraphConv"].reasons == {"relation-dropout": 1}

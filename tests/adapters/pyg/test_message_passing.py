"""Layers of the user's own: inherited from ours, or accelerated one by one."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from gnn_backend import verify
from gnn_backend.errors import StrictFallbackError
from tests.adapters.attention import compare, leaves

pytest.importorskip("torch_geometric")
import torch_geometric.nn as nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import aggr

from gnn_backend.adapters.pyg import MessagePassing
from gnn_backend.adapters.pyg.messages import Form, form_of
from tests.adapters.pyg.helpers import edges, normal

pytestmark = pytest.mark.usefixtures("twin_aggregation")

N, F = 12, 6
X, EDGES = normal(N, F), edges(N, N)
COUNT = EDGES.shape[1]
W = normal(COUNT, seed=2).abs()

AGGRS: list[Any] = [
    "add", "mean", "max", "min", "mul", "var", "std", "softmax", "powermean",
    ["mean", "max", "std"], ["softmax", "powermean", "min"],
    lambda: aggr.MultiAggregation(["add", "max"], mode="proj",
                                  mode_kwargs={"in_channels": F, "out_channels": 5}),
    lambda: aggr.MultiAggregation(["min", "max", "var"], mode="max"),
    lambda: aggr.MultiAggregation([aggr.SoftmaxAggregation(t=0.5), aggr.SoftmaxAggregation(t=2.0)]),
    lambda: aggr.SoftmaxAggregation(t=0.3, learn=True, channels=F),
    lambda: aggr.PowerMeanAggregation(p=2.0, learn=True),
    lambda: aggr.DegreeScalerAggregation(["mean", "max"], ["identity", "linear"],
                                         torch.tensor([1, 2, 3])),
]  # fmt: skip


class Default(nn.MessagePassing):
    def forward(self, x: Any, edge_index: Tensor, size: Any = None) -> Tensor:
        return self.propagate(edge_index, x=x, size=size)


class Weighted(nn.MessagePassing):
    def forward(self, x: Any, edge_index: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.propagate(edge_index, h=x, weight=weight)

    def message(self, h_j: Tensor, weight: Tensor | None) -> Tensor:
        return h_j if weight is None else weight.view(-1, 1) * h_j


class Column(nn.MessagePassing):
    def forward(self, x: Any, edge_index: Tensor, w: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_j: Tensor, w: Tensor) -> Tensor:
        """Times a weight."""
        return x_j * w


class OurDefault(MessagePassing):
    def forward(self, x: Any, edge_index: Tensor, size: Any = None) -> Tensor:
        return self.propagate(edge_index, x=x, size=size)


class OurWeighted(MessagePassing):
    def forward(self, x: Any, edge_index: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            return x_j
        return weight.unsqueeze(-1) * x_j


class OtherMessage(MessagePassing):
    def forward(self, x: Any, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_i - x_j


class OwnUpdate(OurDefault):
    def update(self, inputs: Tensor) -> Tensor:
        return inputs.relu()


class OwnAggregate(OurDefault):
    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int | None = None) -> Tensor:
        return 2 * super().aggregate(inputs, index, dim_size=dim_size)


class OwnPropagate(OurDefault):
    def propagate(self, edge_index: Tensor, x: Any, size: Any = None) -> Tensor:
        return x.relu()


def ran(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[verify.Run, Any]:
    given = tuple(leaves(a) for a in args)
    with gnn_backend.profile() as profile:
        found = verify.run(module, module, given, {}, [f"input{k}" for k in range(len(args))])
    return found, profile


def check(module: torch.nn.Module, *args: Any) -> None:
    """A layer that is accelerated by itself runs fused and equals stock."""
    ours, profile = ran(module, args)
    assert profile.accelerated == 1 and dict(profile.reasons) == {}
    assert set(profile.by_symbol) == {"pyg.MessagePassing"}
    assert sum(profile.launches.values()) >= 1
    with gnn_backend.disabled():
        theirs, profile = ran(module, args)
    assert profile.calls == 0
    compare("output", ours.outputs, theirs.outputs)
    compare("gradient of", ours.gradients, theirs.gradients)


def accelerated(module: torch.nn.Module) -> torch.nn.Module:
    return gnn_backend.accelerate(module)


def made(aggregation: Any) -> Any:
    return aggregation() if callable(aggregation) else aggregation


@pytest.mark.parametrize("number", range(len(AGGRS)))
@pytest.mark.parametrize("weighted", [False, True])
def test_every_aggregation(number: int, weighted: bool) -> None:
    torch.manual_seed(0)
    extra = (W,) if weighted else ()
    for module in (OurWeighted(made(AGGRS[number])), accelerated(Weighted(made(AGGRS[number])))):
        check(module, X, EDGES, *extra)


FORMS = {
    "pair": ((normal(9, F), normal(14, F)), edges(9, 14)),
    "no destinations": ((normal(9, F), None), edges(9, 14), (9, 14)),
    "sources alone": (normal(9, F), edges(9, 14), (9, 14)),
    "sized": (X, EDGES, (N, N)),
    "edge index": (X, EdgeIndex(EDGES, sparse_size=(N, N))),
    "edge index, bipartite": (normal(9, F), EdgeIndex(edges(9, 14), sparse_size=(9, 14))),
    "sorted": (X, EdgeIndex(EDGES, sparse_size=(N, N)).sort_by("col")[0]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_arguments(form: str) -> None:
    check(OurDefault("max"), *FORMS[form])
    check(accelerated(Default()), *FORMS[form])


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("node_dim", [0, -2])
def test_settings(flow: str, node_dim: int) -> None:
    check(OurDefault("mean", flow=flow, node_dim=node_dim), X, EDGES)


@pytest.mark.parametrize("shape", [(COUNT, 1), (COUNT, F)])
def test_weights_that_multiply_as_they_are(shape: tuple[int, ...]) -> None:
    check(accelerated(Column("add")), X, EDGES, normal(*shape, seed=4))


def test_weights_of_another_dtype() -> None:
    check(OurWeighted("add"), X, EDGES, W.double())


REASONS: dict[str, tuple[str, Callable[[], Any], tuple[Any, ...]]] = {
    "message": ("overridden-message", OtherMessage, (X, EDGES)),
    "update": ("overridden-message", OwnUpdate, (X, EDGES)),
    "aggregate": ("overridden-message", OwnAggregate, (X, EDGES)),
    "median": ("aggregation", lambda: OurDefault("median"), (X, EDGES)),
    "node_dim": ("node-dim", lambda: OurDefault(node_dim=-1), (X.T.contiguous(), EDGES)),
    "three dimensions": ("input-form", OurDefault, (normal(2, N, F), EDGES)),
    "pair, reversed": ("flow", lambda: OurDefault(flow="target_to_source"), ((X, X), EDGES)),
    "adjacency": (
        "adjacency",
        OurDefault,
        (X, torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(COUNT), (N, N)).coalesce()),
    ),
}


@pytest.mark.filterwarnings("ignore:.*should define a dim_size")
@pytest.mark.parametrize("case", REASONS)
def test_fallbacks(case: str) -> None:
    reason, make, args = REASONS[case]
    module = make()
    with gnn_backend.disabled():
        want = module(*args)
    with gnn_backend.profile() as profile:
        assert torch.equal(module(*args), want)
    assert dict(profile.reasons) == {reason: 1}


def test_missing_weights_give_the_stock_error() -> None:
    module = accelerated(Column())
    with pytest.raises(TypeError, match="NoneType"):
        module(X, EDGES, None)


def test_own_propagate_is_left_alone() -> None:
    module = OwnPropagate()
    with gnn_backend.profile() as profile:
        assert torch.equal(module(X, EDGES), X.relu())
    assert profile.calls == 0


def test_explanation_mode_and_back() -> None:
    for module in (OurDefault("add"), accelerated(Default("add"))):
        module._edge_mask = torch.zeros(COUNT)
        module.explain = True
        module(X, EDGES)
        module.explain = False
        check(module, X, EDGES)


def test_wrong_sizes_give_the_stock_error() -> None:
    for size in ((N + 1, N), (N, 3)):
        module = OurDefault("add")
        with gnn_backend.disabled(), pytest.raises(Exception) as stock:
            module(X, EDGES, size)
        with pytest.raises(Exception) as ours:
            module(X, EDGES, size)
        assert (type(ours.value), str(ours.value)) == (type(stock.value), str(stock.value))


def test_accelerate_and_undo() -> None:
    model = torch.nn.ModuleList(
        [Default("max"), nn.GCNConv(F, 4), nn.EdgeConv(torch.nn.Identity())]
    )
    classes = [type(layer) for layer in model]
    gnn_backend.accelerate(model)
    assert [type(layer).__name__ for layer in model] == [cls.__name__ for cls in classes]
    assert type(model[2]) is classes[2]  # a message that nobody can fuse
    check(model[0], X, EDGES)
    check(copy.deepcopy(model[0]), X, EDGES)
    check(pickle.loads(pickle.dumps(model[0])), X, EDGES)
    assert gnn_backend.explain(model[0], X, EDGES).layers[0].accelerated
    gnn_backend.accelerate(model, undo=True)
    assert [type(layer) for layer in model] == classes


def test_enable_alone_leaves_own_layers_alone() -> None:
    with gnn_backend.enabled(), gnn_backend.profile() as profile:
        Default("add")(X, EDGES)

        class Late(nn.MessagePassing):
            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                return self.propagate(edge_index, x=x)

        Late()(X, EDGES)
    assert profile.calls == 0
    assert not hasattr(nn.MessagePassing.propagate, "__gnn_backend_stock__")


def test_modes() -> None:
    module = OurDefault("max")
    with gnn_backend.enabled(mode="verify"), gnn_backend.profile() as profile:
        module(X, EDGES)
    assert profile.accelerated == 1
    with gnn_backend.enabled(mode="strict"), pytest.raises(StrictFallbackError):
        OtherMessage()(X, EDGES)


def _forms() -> dict[str, Any]:
    class Sources:
        def plain(self, x_j):
            return x_j

        def left(self, h_j, w):
            return w * h_j

        def right(self, x_j, w):
            return x_j * w.view(-1, 1)

        def reshaped(self, x_j, w):
            return w.reshape(-1, 1) * x_j

        def indexed(self, x_j, w):
            return w[:, None] * x_j

        def unless(self, x_j, w=None):
            return x_j * w.unsqueeze(1) if w is not None else x_j

        def branch(self, x_j, w):
            if w is None:
                return x_j
            else:
                return x_j * w.unsqueeze(-1)

        def receiver(self, x_i):
            return x_i

        def power(self, x_j, w):
            return x_j**w

        def twice(self, x_j):
            return 2 * x_j

        def both(self, x_j, w):
            return x_j * w * w

        def other(self, x_j, w, v):
            return x_j if v is None else x_j * w

        def flat(self, x_j, w):
            return x_j * w.view(1, -1)

        def called(self, x_j, w):
            return torch.relu(x_j) * w

        def node(self, x_j, w_j):
            return x_j * w_j

        def effect(self, x_j):
            self.seen = x_j
            return x_j

        def local(self, x_j):
            return X_j  # noqa: F821

        def many(self, *x_j):
            return x_j

    return {k: v for k, v in vars(Sources).items() if not k.startswith("__")}  # fmt: skip


WANTED = {
    "plain": Form("x"),
    "left": Form("h", "w"),
    "right": Form("x", "w", True),
    "reshaped": Form("x", "w", True),
    "indexed": Form("x", "w", True),
    "unless": Form("x", "w", True, True),
    "branch": Form("x", "w", True, True),
}


@pytest.mark.parametrize("name", _forms())
def test_forms_of_messages(name: str) -> None:
    assert form_of(_forms()[name]) == WANTED.get(name)


def test_forms_of_stock_layers() -> None:
    assert form_of(nn.MessagePassing.message) == Form("x")
    for cls in (nn.GCNConv, nn.GraphConv, nn.TAGConv, nn.GatedGraphConv):
        assert form_of(cls.message) == Form("x", "edge_weight", True, True)
    assert form_of(nn.ChebConv.message) == Form("x", "norm", True)
    assert all(form_of(c.message) is None for c in (nn.PNAConv, nn.GINEConv, nn.LEConv))


def test_combinations_of_aggregations() -> None:
    for names in itertools.combinations(("add", "max", "std", "softmax"), 2):
        check(OurDefault(list(names)), X, EDGES)

"""The layer inside PyG's own containers and tools."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gnn_backend
from tests.adapters.pyg.helpers import edges, fused, normal

pytest.importorskip("torch_geometric")
from torch_geometric.explain import Explainer, GNNExplainer
from torch_geometric.nn import GAT, GATv2Conv, HeteroConv, to_hetero

X = {"a": normal(10, 5), "b": normal(7, 4, seed=1)}
EDGES = {
    ("a", "to", "b"): edges(10, 7, 30),
    ("b", "to", "a"): edges(7, 10, 30, seed=1),
    ("a", "to", "a"): edges(10, 10, 40, seed=2),
}
HOMOGENEOUS = (X["a"], EDGES[("a", "to", "a")])


def close(got: dict[str, Tensor], want: dict[str, Tensor]) -> bool:
    return all(torch.allclose(got[name], want[name], atol=1e-5) for name in want)


def test_hetero_conv() -> None:
    torch.manual_seed(0)
    convs = {k: GATv2Conv((-1, -1), 6, add_self_loops=k[0] == k[2]) for k in EDGES}
    model = HeteroConv(convs)
    want = model(X, EDGES)
    with fused():
        got = model(X, EDGES)
    assert close(got, want)


@pytest.mark.parametrize("transformed_while_enabled", [False, True])
def test_to_hetero(transformed_while_enabled: bool) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = GATv2Conv((-1, -1), 6, add_self_loops=False)
            self.second = GATv2Conv((-1, -1), 3, add_self_loops=False)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    torch.manual_seed(0)
    state = gnn_backend.enabled() if transformed_while_enabled else gnn_backend.disabled()
    with state:
        model = to_hetero(Net(), (list(X), list(EDGES)))
        model(X, EDGES)
    want = model(X, EDGES)
    # Made while enabled, all relations of a layer are one call.
    with fused(calls=2 if transformed_while_enabled else 6):
        got = model(X, EDGES)
    assert close(got, want)


def test_functional_call() -> None:
    torch.manual_seed(0)
    model = GAT(5, 8, 2, 3, v2=True, heads=2)
    doubled = {name: 2 * value for name, value in model.named_parameters()}
    want = torch.func.functional_call(model, doubled, HOMOGENEOUS)
    with fused(calls=2):
        got = torch.func.functional_call(model, doubled, HOMOGENEOUS)
    assert torch.allclose(got, want, atol=1e-5)


def test_explainer() -> None:
    torch.manual_seed(0)
    model = GAT(5, 8, 2, 3, v2=True)
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}

    def explain() -> tuple[Tensor, Tensor]:
        explainer = Explainer(
            model,
            GNNExplainer(epochs=2),
            explanation_type="model",
            node_mask_type="attributes",
            edge_mask_type="object",
            model_config=config,
        )
        torch.manual_seed(1)
        explanation = explainer(*HOMOGENEOUS)
        return explanation.edge_mask, explanation.node_mask

    want = explain()
    with gnn_backend.enabled(), gnn_backend.profile() as profile:
        got = explain()
    assert set(profile.reasons) == {"explain-on"}
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    with fused(calls=2):
        model(*HOMOGENEOUS)


def test_training_step_by_step() -> None:
    """Ten steps of gradient descent end in the stock parameters."""

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        model = GAT(5, 8, 2, 3, v2=True, heads=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        target = torch.arange(10) % 3
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(*HOMOGENEOUS), target).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    want = train()
    with fused(calls=20):
        got = train()
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, atol=1e-5)

"""PyG's SuperGATConv beside its arguments: attention loss as stock, and reasons."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

import gnn_backend
from gnn_backend.verify import seed_all
from tests.adapters.pyg.helpers import edges, falls_back, normal

pytest.importorskip("torch_geometric")
from torch_geometric.nn import SuperGATConv

pytestmark = pytest.mark.usefixtures("twin_engine")

N, F = 12, 6
X, EDGES = normal(N, F), edges(N, N)


def layer(**options: Any) -> SuperGATConv:
    torch.manual_seed(1)
    return SuperGATConv(F, options.pop("out_channels", 4), **options)


def trained(conv: SuperGATConv, acceleration: Any, *given: Any) -> list[torch.Tensor]:
    """The loss's logits and labels, the loss with the output's, and its gradients."""
    x = X.detach().requires_grad_()
    seed_all(3)
    with acceleration:
        out = conv(x, *given)
    loss = conv.get_attention_loss() + out.square().mean()
    return [
        conv.att_x, conv.att_y, loss, *torch.autograd.grad(loss, [x, *conv.parameters()]),
        torch.rand(1), torch.tensor(random.random()),
    ]  # fmt: skip


def same_training(stock: SuperGATConv, *given: Any) -> None:
    ours = copy.deepcopy(stock)
    strict = gnn_backend.enabled(mode="strict", hosts="pyg")
    want = trained(stock, gnn_backend.disabled(), *given)
    for got, expected in zip(trained(ours, strict, *given), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention_type", ["MX", "SD"])
@pytest.mark.parametrize("sampled", [0.7, 1.0])
def test_attention_loss(attention_type: str, sampled: float) -> None:
    """The same pairs in the same order, and both generators left as stock leaves them."""
    same_training(layer(attention_type=attention_type, edge_sample_ratio=sampled), EDGES)


@pytest.mark.parametrize("form", ["given", "batch", "reverse"])
def test_where_the_pairs_come_from(form: str) -> None:
    conv = layer(heads=3, is_undirected=form == "batch", edge_sample_ratio=0.8,
                 flow="target_to_source" if form == "reverse" else "source_to_target")  # fmt: skip
    if form == "given":
        same_training(conv, EDGES, edges(N, N, seed=5))
    elif form == "batch":
        same_training(conv, EDGES[:, EDGES[0].argsort()], None, torch.zeros(N, dtype=torch.long))
    else:
        same_training(conv, EDGES)


@pytest.mark.parametrize("negative", [((0, 1), (1, 2)), torch.tensor([[-1, 0], [1, 2]])], ids=str)
def test_pairs_that_are_left_to_stock(negative: Any) -> None:
    if isinstance(negative, tuple):
        negative = tuple(torch.tensor(row) for row in negative)
    conv = layer(dropout=0.3)
    seed_all(3)
    with gnn_backend.disabled():
        want = conv(X, EDGES, negative), conv.att_x
    seed_all(3)
    with gnn_backend.enabled(hosts="pyg"):
        got = conv(X, EDGES, negative), conv.att_x
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


class OwnAttention(SuperGATConv):
    def get_attention(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().get_attention(*args, **kwargs)


def test_reasons() -> None:
    with falls_back("overridden-message"):
        OwnAttention(F, 4)(X, EDGES)
    with falls_back("parametrized"):
        conv = layer().eval()
        conv.att_l = torch.nn.Parameter(torch.ones(1, 1, 1))
        conv(X, EDGES)

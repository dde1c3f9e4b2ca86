"""PyG's SuperGATConv beside its arguments: attention loss as stock, and reasons."""

from __future__ import annotations

import copy
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


@pytest.mark.parametrize("attention_type", ["MX", "SD"])
def test_attention_loss(attention_type: str) -> None:
    stock = layer(attention_type=attention_type, edge_sample_ratio=0.7)
    ours = copy.deepcopy(stock)
    found = []
    for conv, acceleration in (
        (stock, gnn_backend.disabled()),
        (ours, gnn_backend.enabled(mode="strict", hosts="pyg")),
    ):
        seed_all(3)
        with acceleration:
            out = conv(X, EDGES)
        loss = conv.get_attention_loss() + out.square().mean()
        found.append([loss, *torch.autograd.grad(loss, list(conv.parameters()))])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    negative = edges(N, N, seed=5)
    for conv in (stock, ours):
        with gnn_backend.enabled(hosts="pyg") if conv is ours else gnn_backend.disabled():
            conv.edge_sample_ratio = 1.0
            conv(X, EDGES, negative)
    torch.testing.assert_close(ours.att_x, stock.att_x)
    assert torch.equal(ours.att_y, stock.att_y)


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

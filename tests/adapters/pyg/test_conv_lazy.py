"""``GATv2Conv`` whose first call makes its parameters: the random state gives those of stock."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.adapters.pyg.helpers import assert_equal, edges, fused, gradients, normal

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATv2Conv


@pytest.mark.parametrize("share_weights", [True, False])
@pytest.mark.parametrize("pair", [True, False])
def test_lazy(pair: bool, share_weights: bool) -> None:
    channels: Any = (-1, -1) if pair else -1
    stock = GATv2Conv(channels, 4, 3, share_weights=share_weights, residual=True)
    ours = copy.deepcopy(stock)
    width = 6 if share_weights else 5
    x: Any = (normal(12, 6), normal(12, width, seed=1)) if pair else normal(12, 6)
    edge_index = edges(12, 12)
    with fused(calls=2):
        torch.manual_seed(2)
        ours(x, edge_index)
        got = gradients(ours, x, edge_index)
    torch.manual_seed(2)
    stock(x, edge_index)
    assert list(ours.state_dict()) == list(stock.state_dict())
    assert_equal(got, gradients(stock, x, edge_index))

"""Real graphs from the folder in ``GNN_BACKEND_TEST_DATA``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.adapters.pyg.helpers import assert_equal, fused, gradients, normal

pytest.importorskip("torch_geometric")
from torch_geometric.nn import GATv2Conv

FOLDER = os.environ.get("GNN_BACKEND_TEST_DATA")


@pytest.mark.skipif(not FOLDER, reason="GNN_BACKEND_TEST_DATA names no folder of graphs")
@pytest.mark.parametrize("name", ["cora", "minesweeper", "musae_git"])
def test_equals_stock(name: str) -> None:
    path = Path(str(FOLDER)) / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in GNN_BACKEND_TEST_DATA")
    with np.load(path) as data:
        edge_index = torch.from_numpy(data["edge_index"]).long()
        x = normal(int(data["num_nodes"]), 16)
    torch.manual_seed(0)
    conv = GATv2Conv(16, 8, heads=2)
    want = gradients(conv, x, edge_index)
    with fused():
        assert_equal(gradients(conv, x, edge_index), want)

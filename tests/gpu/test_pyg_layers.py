"""PyG's layers of several types on a GPU: fused, and equal to stock there."""

from __future__ import annotations

import importlib.util

from gnn_backend.bench import pyg_layers
from gnn_backend.cli import layers as command
from tests.gpu import support
from tests.gpu.support import table

pytestmark = support.MARKS


@table("name", tuple(pyg_layers.LAYERS))
def test_status(name: str) -> None:
    if importlib.util.find_spec("torch_geometric") is None:
        support.skip("PyG is not installed")
    assert command._try("pyg", name, support.DEVICE) == ("fused", [])

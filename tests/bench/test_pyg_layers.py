"""PyG's layers of several types: made, run and judged."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch_geometric", reason="PyG is not installed")

from gnn_backend.bench import hosts, pyg_layers
from gnn_backend.cli import layers as command

PRODUCTS = ("HeteroDictLinear", "HeteroLinear")


def test_they_are_the_hosts_layers() -> None:
    assert pyg_layers.CONVOLUTIONS.keys() <= hosts.layer_classes("pyg").keys()
    assert pyg_layers.LAYERS.keys() <= command._names("pyg").keys()


@pytest.mark.parametrize("name", ["HGTConv", "HeteroConv", "RGCNConv", "to_hetero", *PRODUCTS])
def test_status(name: str) -> None:
    wanted: Any = ("products" if name in PRODUCTS else "fused", [])
    assert command._try("pyg", name, "cpu") == wanted

"""The aggregating layers on the device kernels themselves, run on the host."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("torch_geometric")
from gnn_backend import config
from tests.adapters.attention import check_equals_stock
from tests.adapters.pyg.aggregating import LAYERS, build, call


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize("name", LAYERS)
def test_equals_stock(name: str) -> None:
    c = {k: v[-1] if k == "weight" else v[0] for k, v in LAYERS[name].choices.items()}
    x, edge_index, options = call(name, c)
    with config.override(cpu_target="emulator"):
        check_equals_stock(build(name, c), "pyg", x, edge_index, **options)

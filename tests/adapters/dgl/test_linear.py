"""``TypedLinear`` and ``HeteroLinear``: results and all gradients as stock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gnn_backend import config

pytest.importorskip("dgl", reason="DGL is not installed")
from dgl.nn.pytorch import HeteroLinear, TypedLinear

from tests.adapters.dgl.aggregation import name
from tests.adapters.dgl.helpers import falls_back
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import normal
from tests.adapters.relational import check
from tests.adapters.typed_rows import ROWS, TYPES, OneTensor, has_kernels, kinds

TYPED: dict[str, list[Any]] = {
    "regularizer": [None, "basis", "bdd"],
    "order": ["sorted", "promised", "mixed"],
    "types": [torch.int64, torch.int32],
    "target": ["numba", "emulator"],
    "dtype": [torch.float32, torch.float64],
}


@pytest.mark.parametrize("c", pairwise(TYPED, has_kernels), ids=name)
def test_typed_linear(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    linear = TypedLinear(6, 4, TYPES, c["regularizer"], 2).to(c["dtype"])
    types = kinds(c["order"]).to(c["types"])
    with config.override(cpu_target=c["target"]):
        check("dgl", linear, normal(ROWS, 6, dtype=c["dtype"]), types, c["order"] == "promised")


@pytest.mark.parametrize("target", ["numba", "emulator"])
@pytest.mark.parametrize("bias", [True, False])
def test_hetero_linear(bias: bool, target: str) -> None:
    torch.manual_seed(1)
    widths = {"a": 6, ("a", "r", "b"): 5, "b": 6}
    layer = OneTensor(HeteroLinear(widths, 4, bias), [*reversed(widths)])
    tables = [normal(3 + i, w, seed=i) for i, w in enumerate(reversed(widths.values()))]
    with config.override(cpu_target=target):
        check("dgl", layer, *tables)


@pytest.mark.parametrize(
    ("make", "given", "reason"),
    [
        (lambda: TypedLinear(6, 4, TYPES), (normal(0, 6), kinds()[:0]), "empty"),
        (lambda: HeteroLinear({"a": 6}, 4), ({"a": normal(2, 3, 6)},), "input-form"),
    ],
)
def test_falls_back(make: Callable[[], nn.Module], given: Any, reason: str) -> None:
    with falls_back(reason):
        make()(*given)

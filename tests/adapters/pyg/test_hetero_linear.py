"""``HeteroLinear`` and ``HeteroDictLinear``: results and all gradients as stock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gnn_backend
from gnn_backend import config
from gnn_backend.adapters.tensor_cache import type_orders

pytest.importorskip("torch_geometric")
from torch_geometric.nn import HeteroDictLinear, HeteroLinear

from tests.adapters.dgl.aggregation import name
from tests.adapters.grid.covering import pairwise
from tests.adapters.pyg.helpers import falls_back, normal
from tests.adapters.relational import check
from tests.adapters.typed_rows import ROWS, TYPES, OneTensor, has_kernels, kinds

BY_TYPE: dict[str, list[Any]] = {
    "order": ["sorted", "promised", "mixed"],
    "bias": [True, False],
    "target": ["numba", "emulator"],
    "types": [torch.int64, torch.int32],
    "dtype": [torch.float32, torch.float64, torch.bfloat16],
}
TABLES = {"a": 14, "b": 9, "c": 5}
OF_TABLES: dict[str, list[Any]] = {
    "widths": [(6, 6, 6), (6, 5, 6)],
    "given": ["abc", "cab", "b", "ca", "abcd"],
    "bias": [True, False],
    "target": ["numba", "emulator"],
    "dtype": [torch.float32, torch.float64],
}


@pytest.mark.parametrize("c", pairwise(BY_TYPE, has_kernels), ids=name)
def test_by_type_equals_stock(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    promised = c["order"] == "promised"
    linear = HeteroLinear(6, 4, TYPES, is_sorted=promised, bias=c["bias"]).to(c["dtype"])
    with config.override(cpu_target=c["target"]):
        check("pyg", linear, normal(ROWS, 6, dtype=c["dtype"]), kinds(c["order"]).to(c["types"]))


def tables(widths: tuple[int, ...], names: str, dtype: torch.dtype) -> list[Tensor]:
    known = dict(zip(TABLES, widths, strict=True))
    return [normal(TABLES.get(n, 3), known.get(n, 2), seed=i, dtype=dtype)
            for i, n in enumerate(names)]  # fmt: skip


@pytest.mark.parametrize("c", pairwise(OF_TABLES, has_kernels), ids=name)
def test_of_tables_equals_stock(c: dict[str, Any]) -> None:
    torch.manual_seed(1)
    widths = dict(zip(TABLES, c["widths"], strict=True))
    layer = OneTensor(HeteroDictLinear(widths, 4, bias=c["bias"]), c["given"]).to(c["dtype"])
    with config.override(cpu_target=c["target"]):
        check("pyg", layer, *tables(c["widths"], c["given"], c["dtype"]))


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: HeteroLinear(-1, 4, TYPES), (normal(ROWS, 6), kinds())),
        (lambda: HeteroDictLinear(-1, 4, [*TABLES]),
         ({"c": normal(5, 3), "a": normal(14, 6), "b": normal(9, 6)},)),
    ],
)  # fmt: skip
def test_widths_are_found_at_the_first_call(make: Callable[[], nn.Module], given: Any) -> None:
    found = []
    for enabled in (False, True):
        torch.manual_seed(0)
        layer = make()
        with gnn_backend.enabled(mode="strict") if enabled else gnn_backend.disabled():
            found.append((layer(*given), layer.state_dict()))
    (want, theirs), (got, ours) = found
    assert {n: t.tolist() for n, t in ours.items()} == {n: t.tolist() for n, t in theirs.items()}
    torch.testing.assert_close(got, want)


def test_second_derivatives() -> None:
    linear = HeteroLinear(3, 2, TYPES).double()
    x, types = normal(7, 3, dtype=torch.float64).requires_grad_(), kinds()[:7]
    with gnn_backend.enabled(hosts="pyg", mode="strict"):
        assert torch.autograd.gradgradcheck(lambda x, *_: linear(x, types),
                                            (x, *linear.parameters()))  # fmt: skip


def test_types_are_sorted_once_and_again_when_edited() -> None:
    linear, x, types = HeteroLinear(6, 4, TYPES), normal(ROWS, 6), kinds()
    type_orders.clear()
    with gnn_backend.enabled(hosts="pyg", mode="strict"):
        linear(x, types)
        held = type_orders.nbytes()
        linear(x, types)
        assert type_orders.nbytes() == held > 0
        types[0] = TYPES - 1
        got = linear(x, types)
    torch.testing.assert_close(got, linear(x, types))
    del types
    assert type_orders.nbytes() == 0


def test_types_out_of_range_give_an_error() -> None:
    with gnn_backend.enabled(hosts="pyg"), pytest.raises((RuntimeError, IndexError, ValueError)):
        HeteroLinear(6, 4, TYPES)(normal(ROWS, 6), kinds() + 1)


def hooked() -> nn.Module:
    layer = HeteroDictLinear({"a": 6}, 4)
    layer.lins["a"].register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    ("make", "given", "reason"),
    [
        (lambda: HeteroLinear(6, 4, TYPES), (normal(0, 6), kinds()[:0]), "empty"),
        (lambda: HeteroDictLinear({"a": 6}, 4), ({},), "empty"),
        (lambda: HeteroDictLinear({"a": 6}, 4), ({"a": normal(2, 3, 6)},), "input-form"),
        (hooked, ({"a": normal(3, 6)},), "parametrized"),
    ],
)
def test_falls_back(make: Callable[[], nn.Module], given: Any, reason: str) -> None:
    with falls_back(reason):
        make()(*given)

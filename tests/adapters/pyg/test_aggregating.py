"""Every argument of PyG's aggregating layers: results and all gradients as stock."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch_geometric")
from tests.adapters.attention import check_equals_stock
from tests.adapters.pyg.aggregating import (
    COMBINATIONS,
    LAYERS,
    build,
    call,
    constants,
    identifier,
)

pytestmark = [pytest.mark.usefixtures("twin_aggregation"), pytest.mark.sampled(6)]


@pytest.mark.parametrize(("name", "c"), COMBINATIONS, ids=identifier)
def test_equals_stock(name: str, c: dict[str, Any]) -> None:
    x, edge_index, options = call(name, c)
    check_equals_stock(build(name, c), "pyg", x, edge_index, constant=constants(c), **options)


def test_many_combinations() -> None:
    assert {name for name, _ in COMBINATIONS} == set(LAYERS)
    assert len(COMBINATIONS) > 200

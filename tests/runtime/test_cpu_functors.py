"""The attention family on the CPU engine, against plain torch in float64: all that is returned."""

from __future__ import annotations

import pytest

from gnn_backend.runtime import cpu_call
from tests.runtime.cpu_cases import assert_close, skewed_graph
from tests.runtime.cpu_family import FAMILY, engine_results, make_call, twin_results

ALL = {
    "gatv2": ("rows", "attention"),
    "gat": ("terms", "shared", "summed", "attention"),
    "dot": ("terms", "shared", "asked", "summed", "attention"),
}


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Cut even small graphs into many blocks, so that rows are split."""
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", 1)


def check(call, tolerance=1e-11):
    results = engine_results(call)
    assert_close(results, twin_results(call), tolerance)
    return results


@pytest.mark.parametrize("width", [1, 7])
@pytest.mark.parametrize("name", ["gat", "dot"])
def test_nodes_alone(name, width):
    check(make_call(name, skewed_graph(), 2, width))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 7, 5), (2, 3, 16)], ids=str)
@pytest.mark.parametrize("name", FAMILY)
def test_everything_at_once(name, sizes):
    heads, width, features = sizes
    call = make_call(name, skewed_graph(), heads, width, features, ALL[name], dropout_p=0.3)
    check(call)

"""Aggregation on the CPU's own kernels, through the operator: values and gradients in float64."""

from __future__ import annotations

import pytest

from gnn_backend.profile import profile
from gnn_backend.runtime import cpu_call
from tests.ops.aggregations import LINEAR, TABLE, Row, case_of, check_case

pytestmark = pytest.mark.sampled(9)

ROWS = [TABLE[0], TABLE[3], TABLE[8], TABLE[14], LINEAR[2]]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_table(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", 1)
    with profile() as record:
        check_case(case_of(row))
    assert ("numba", "aggregate_forward") in record.launches
    assert any(name != "aggregate_forward" for _, name in record.launches)

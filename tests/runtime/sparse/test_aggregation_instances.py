"""Units of aggregation: names, texts, NVRTC on every architecture."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnn_backend.runtime.instances import headers
from gnn_backend.runtime.sparse.aggregation_instances import (
    FIRST,
    KEEP,
    MESSAGES,
    NAN_WINS,
    SECOND,
    STATISTICS,
    backward_edge_unit,
    backward_unit,
    fast_units,
    flags_of,
    forward_unit,
    merge_unit,
    merge_vector,
)
from gnn_backend.runtime.sparse.layout import TYPES, columns_for
from tests.runtime.test_compile import SOME_ARCHS, spills

ALL = tuple(STATISTICS)


def test_flags_leave_out_what_makes_no_difference() -> None:
    assert flags_of(["mean"], keep=True, first=True, nan_wins=True) == STATISTICS["sum"]
    assert flags_of(["mul"], keep=True, first=True, nan_wins=True) == STATISTICS["mul"] | KEEP
    most = STATISTICS["max"]
    assert flags_of(["max"], keep=False, first=True, nan_wins=True) == most | NAN_WINS
    assert flags_of(["max"], keep=True, first=True, nan_wins=False) == most | KEEP | FIRST
    assert not flags_of(["max"], keep=True, first=True, nan_wins=True, second=True) & SECOND
    both = STATISTICS["sum"] | STATISTICS["square"]
    assert flags_of(["std"], keep=True, first=False, nan_wins=False) == both


def test_fast_units_are_few_and_named_once() -> None:
    units = fast_units()
    names = [unit.name for unit in units]
    assert len(set(names)) == len(names) and 60 < len(names) < 100
    for unit in units:
        included = [line.split('"')[1] for line in unit.source.splitlines() if "#include" in line]
        assert included and set(included) <= set(headers())
        assert unit.entries == (unit.name,) and unit.source.count(f"({unit.name},") == 1


def test_what_a_name_does_not_tell_is_the_same() -> None:
    """Units of one name have one text."""
    texts: dict[str, str] = {}
    for dtype in TYPES:
        for width in (1, 7, 8, 64, 128, 600):
            for access, dim in (("none", 1), ("head", 4), ("row", 1)):
                columns = columns_for(dtype, width, ("row", access), dim)
                for names in (("max",), ("sum", "square"), ALL):
                    flags = flags_of(names, keep=True, first=True, nan_wins=True)
                    kind = "copy" if access == "none" else "mul"
                    units = [make(kind, flags, dtype, columns, access, wide)
                             for make in (forward_unit, backward_unit, backward_edge_unit)
                             for wide in (False, True)]  # fmt: skip
                    for unit in units:
                        assert texts.setdefault(unit.name, unit.source) == unit.source


@pytest.mark.slow
@pytest.mark.parametrize("arch", SOME_ARCHS)
@pytest.mark.thorough
def test_fast_units_spill_nothing(arch: str) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy with NVRTC")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda unit: spills(unit, arch), fast_units()))
    assert not [kernels for kernels in found if kernels]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", TYPES)
def test_everything_at_once_compiles(dtype: str) -> None:
    """Every statistic, message and access, masked tails, 64-bit edge ids."""
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy with NVRTC")
    for kind, width, access in zip(MESSAGES, (128, 7, 33, 136), ("none", "row", "head", "row"),
                                   strict=True):  # fmt: skip
        columns = columns_for(dtype, width, ("row", access), width)
        flags = flags_of(ALL, keep=True, first=kind != "mul", nan_wins=True, second=True)
        spills(forward_unit(kind, flags, dtype, columns, access, True), "sm_90")
        vector = merge_vector(flags, dtype, width)
        spills(merge_unit(flags, dtype, vector, True), "sm_90")
        flags = flags & ~KEEP & ~SECOND
        spills(backward_unit(kind, flags, dtype, columns, access, True), "sm_90")
        if access != "none":
            spills(backward_edge_unit(kind, flags, dtype, columns, access, True), "sm_90")

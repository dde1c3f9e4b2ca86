"""Units of the sparse operators: names, texts, NVRTC on every architecture."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnn_backend.runtime.instances import Unit, headers
from gnn_backend.runtime.sparse.instances import fast_units, sddmm_unit, spmm_unit
from gnn_backend.runtime.sparse.layout import TYPES, columns_for
from tests.runtime.test_compile import EVERY_UNIT, SOME_ARCHS, spills


def test_fast_units_are_few_and_named_once() -> None:
    units = fast_units()
    names = [unit.name for unit in units]
    assert len(set(names)) == len(names) and 80 < len(names) < 120
    entries = [entry for unit in units for entry in unit.entries]
    assert len(set(entries)) == len(entries)
    for unit in units:
        included = [line.split('"')[1] for line in unit.source.splitlines() if "#include" in line]
        assert included and set(included) <= set(headers())
        for entry in unit.entries:
            assert unit.source.count(f"({entry},") == 1 and entry.startswith(unit.name)


def test_what_a_name_does_not_tell_is_the_same() -> None:
    """Units of one name have one text."""
    texts: dict[str, str] = {}
    for dtype in TYPES:
        for width in (1, 7, 8, 64, 100, 128, 600):
            for accesses, dim in ((("row", "none"), 1), (("row", "head"), 4), (("row", "row"), 1),
                                  (("head", "row"), 8), (("table", "row"), 1)):  # fmt: skip
                columns = columns_for(dtype, width, accesses, dim)
                for wide in (False, True):
                    units = [spmm_unit("mul", r, dtype, columns, accesses, wide)
                             for r in ("sum", "max", "min")]  # fmt: skip
                    for targets in (("u", "v"), ("v", "e")):
                        units.append(sddmm_unit("mul", dtype, columns, accesses, targets, wide))
                    for unit in units:
                        assert texts.setdefault(unit.name, unit.source) == unit.source


def units_for(arch: str) -> list[Unit]:
    """Every fast unit, or one of each kernel, with its largest layout, in float32 and bfloat16."""
    units = fast_units()
    if arch == EVERY_UNIT:
        return units
    few = ("spmm_copy_lhs_sum", "spmm_mul_max", "sddmm_add", "sddmm_dot", "edge_softmax", "reduce")
    last = {(kind, dtype): unit for unit in units for kind in few for dtype in ("f32", "bf16")
            if unit.name.startswith(kind) and f"_{dtype}_" in unit.name}  # fmt: skip
    assert len(last) == 2 * len(few)
    return list(last.values())


@pytest.mark.slow
@pytest.mark.parametrize("arch", SOME_ARCHS)
@pytest.mark.thorough
def test_fast_units_spill_nothing(arch: str) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy with NVRTC")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda unit: spills(unit, arch), units_for(arch)))
    assert not [kernels for kernels in found if kernels]


@pytest.mark.parametrize("dtype", TYPES)
def test_other_layouts_compile(dtype: str) -> None:
    """Single values, masked tails, tables, 64-bit edge ids, divisions."""
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy with NVRTC")
    for width, accesses, dim in ((7, ("row", "row"), 1), (33, ("table", "row"), 1),
                                 (12, ("row", "head"), 3), (136, ("row", "row"), 1)):  # fmt: skip
        columns = columns_for(dtype, width, accesses, dim)
        spills(spmm_unit("div", "max", dtype, columns, accesses, True), "sm_90")
        spills(sddmm_unit("div", dtype, columns, accesses, ("u", "e"), True), "sm_90")

"""Units over tiles: named apart, compiled for every architecture, no spills."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnn_backend.cli.kernels import every_unit
from gnn_backend.runtime.block_units import (
    DIMS,
    SUM_DIMS,
    all_units,
    block_merge_unit,
    block_sum_unit,
    block_unit,
)
from gnn_backend.runtime.selection import DTYPE_NAMES

#: What is compiled where: float16 differs from bfloat16 in the name of an instruction alone.
WIDELY = {block_unit(t, d, b).name for t, d, b in
          (("bf16", 64, True), ("bf16", 128, False), ("f32", 64, True))}  # fmt: skip
WIDELY |= {block_merge_unit(t).name for t in ("bf16", "f32")}
WIDELY |= {block_sum_unit(t, 64, True).name for t in ("bf16", "f32")}
UNITS = dict.fromkeys(("sm_80", "sm_100", "sm_120"), WIDELY)
UNITS["sm_90"] = {block_unit(t, d).name for t in ("bf16", "f32") for d in DIMS}
UNITS["sm_90"] |= {block_unit(t, d, True).name for t in ("bf16", "f32") for d in (64, 128)}
UNITS["sm_90"] |= {block_unit("f16", d).name for d in (16, 64, 128)}
UNITS["sm_90"] |= {block_sum_unit(t, d, w).name
                   for t, d, w in (("bf16", 64, False), ("bf16", 48, True), ("f32", 64, False),
                                   ("f16", 64, True))}  # fmt: skip
UNITS["sm_90"] |= {block_merge_unit(t).name for t in DTYPE_NAMES.values()}


def test_every_dtype_and_dimension_has_its_unit() -> None:
    units = all_units()
    of_a_dtype = 2 * len(DIMS) + 2 * len(SUM_DIMS) + 1
    assert len({unit.name for unit in units}) == len(units) == len(DTYPE_NAMES) * of_a_dtype
    assert {unit.name for unit in units} <= {unit.name for unit in every_unit()}
    for unit in units:
        assert all(unit.source.count(f"({entry},") == 1 for entry in unit.entries)
    assert block_unit("bf16", 64) is block_unit("bf16", 64)


@pytest.mark.parametrize(
    ("dtype", "dim", "both"),
    [("bf16", 64, True), ("bf16", 80, False), ("f32", 32, True), ("f32", 64, False)],
)
def test_wide_rows_have_a_pass_for_each_gradient(dtype: str, dim: int, both: bool) -> None:
    passes = {entry.rsplit("_", 1)[1] for entry in block_unit(dtype, dim).entries}
    assert passes - {"forward", "stats", "dst"} == ({"src"} if both else {"key", "value"})


@pytest.mark.slow
@pytest.mark.parametrize("arch", sorted(UNITS, key=lambda arch: arch != "sm_90"))
@pytest.mark.thorough
def test_no_unit_spills(arch: str) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy with NVRTC")
    from gnn_backend.runtime.compile import compile_unit

    units = [unit for unit in all_units() if unit.name in UNITS[arch]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda unit: compile_unit(unit, arch), units))
    resources = [kernel for _, kernels in found for kernel in kernels]
    assert len(resources) == sum(len(unit.entries) for unit in units) > 15
    assert not [r for r in resources if r.spill_bytes or r.stack_bytes]

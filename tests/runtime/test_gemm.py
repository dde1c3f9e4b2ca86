"""Units of the typed linear, sizes of their blocks, which way a product goes, and NVRTC."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from gnn_backend.cli.kernels import every_unit
from gnn_backend.runtime import gemm, gemm_choice
from gnn_backend.runtime.gemm_choice import Product, can_group, choose
from gnn_backend.runtime.gemm_units import all_units, columns_for, linear_unit, weight_grad_unit
from tests.runtime.test_compile import spills

#: By architecture; float16 differs from bfloat16 in the names of instructions alone.
WIDELY = {linear_unit("f32", False, 64, True).name, linear_unit("bf16", True, 64, True).name,
          linear_unit("f32", True, 64, True).name, weight_grad_unit("f32", False, True, False).name,
          weight_grad_unit("bf16", True, True, True).name}  # fmt: skip
UNITS = dict.fromkeys(("sm_80", "sm_100", "sm_120"), WIDELY)
UNITS["sm_90"] = {unit.name for unit in all_units() if "_f16" not in unit.name}


def test_units_are_named_apart_and_listed() -> None:
    units = all_units()
    assert len({unit.name for unit in units}) == len(units) == 18 + 16 + 3
    assert {unit.name for unit in units} <= {unit.name for unit in every_unit()}
    assert all(unit.source.count(f"({entry},") == 1 for unit in units for entry in unit.entries)


def test_every_width_has_its_columns() -> None:
    names = {unit.name for unit in all_units()}
    for outer in range(1, 300):
        for tensor in (False, True):
            assert linear_unit("f32", tensor, columns_for(outer, tensor), True).name in names
    assert [columns_for(n, False) for n in (1, 16, 24, 64, 96, 128)] == [16, 16, 32, 64, 32, 64]
    assert [columns_for(n, True) for n in (1, 32, 64)] == [32, 32, 64]


def test_partials_of_wide_weights_stay_few() -> None:
    assert gemm.chunk_for(1, 1) == gemm.chunk_for(1000, 1) == 256
    for blocks in (1, 16):
        chunk = gemm.chunk_for(21_000_000, blocks)
        assert chunk % 32 == 0 and 21_000_000 / chunk <= 2048 / blocks


PRODUCT = Product(torch.bfloat16, 4, 64, 64, False, False, True, (9, 0))


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(PRODUCT) == "kernel"
    assert choose(PRODUCT._replace(types=1)) == "mm"
    assert choose(PRODUCT._replace(types=1, gathered=True)) == "kernel"
    assert choose(PRODUCT._replace(types=1, heads=True)) == "kernel"
    assert choose(PRODUCT._replace(dtype=torch.float64, kernels=False)) == "segments"
    assert can_group(PRODUCT) == (choose(PRODUCT._replace(kernels=False)) == "grouped")
    for change in ({"capability": (8, 0)}, {"capability": None}, {"inner": 60}, {"heads": True},
                   {"gathered": True}, {"dtype": torch.float32}):  # fmt: skip
        assert not can_group(PRODUCT._replace(**change))
    faster = frozenset({(torch.bfloat16, (9, 0))})
    monkeypatch.setattr(gemm_choice, "GROUPED_IS_FASTER", faster)
    assert choose(PRODUCT) == ("grouped" if can_group(PRODUCT) else "kernel")
    assert choose(PRODUCT._replace(capability=(10, 0))) == "kernel"


def test_kernels_where_they_are() -> None:
    assert not gemm.has_kernels(torch.zeros(1))  # the CPU goes by segments
    assert not gemm.has_kernels(torch.zeros(1, dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("arch", sorted(UNITS, key=lambda arch: arch != "sm_90"))
@pytest.mark.thorough
def test_no_unit_spills(arch: str) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy with NVRTC")
    units = [unit for unit in all_units() if unit.name in UNITS[arch]]
    assert len(units) == len(UNITS[arch])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda unit: spills(unit, arch), units))
    assert not [kernels for kernels in found if kernels]

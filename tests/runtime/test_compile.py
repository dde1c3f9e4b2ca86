"""NVRTC without a GPU: kernels compile for one architecture, some of each kind for the others.

Fast kernels spill nothing. ``python -m gnn_backend kernels`` compiles all for all architectures.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gnn_backend.errors import KernelCompileError, Unsupported
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.runtime import compile as compiler
from gnn_backend.runtime.compile import Resources, compile_unit
from gnn_backend.runtime.instances import Unit, all_units, merge_unit, softmax_unit, weights_unit
from gnn_backend.runtime.options import Options
from gnn_backend.runtime.selection import (
    DTYPE_NAMES,
    PACKED_VALUES,
    VALUES,
    on_tensor_cores,
    shape_for,
    shapes_with_features,
)
from tests.runtime.test_instances import unit_of

pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy with NVRTC")

MOST_SPILLED = 128  # bytes stored and loaded: 16 registers once, cheaper than a block less
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
#: Others than the one that was measured are compiled for by ``--thorough`` alone.
SOME_ARCHS = [
    pytest.param(arch, marks=pytest.mark.thorough) if arch != "sm_90" else arch for arch in ARCHS
]
#: Where every float32 and bfloat16 unit is compiled; elsewhere one of each kind.
EVERY_UNIT = "sm_90"
USUAL = [(heads, dim) for heads in (1, 2) for dim in (32, 64, 128, 256)]
#: Elsewhere: two heads, the widest of float32's fast rows, heads side by side, a masked tail.
FEW = [(2, 64), (1, 256), (8, 16), (3, 33)]
#: Functor, heads, dimension and options of units that edges bring something to.
FURTHER = [
    ("gatv2", 2, 64, Options(rows=True)),
    ("gatv2", 2, 64, Options(dropout=True)),
    ("gat", 2, 64, Options(logit=True, dropout=True)),
    ("gat", 2, 64, Options(logit=True, dropout=True, cotangent=True)),
    ("gat", 8, 8, Options(dropout=True)),
    ("gat", 4, 32, Options(features=16, shared=True, aggregate=True)),
    ("supergat", 2, 64, Options(dropout=True)),
    ("scaled_dot", 1, 128, Options()),
    ("dot", 2, 64, Options(logit=True)),
    ("dot", 2, 64, Options(dropout=True)),
    ("dot", 2, 64, Options(logit=True, dropout=True, cotangent=True)),
    ("dot", 4, 32, Options(dropout=True, features=16, shared=True, query=True, aggregate=True)),
    ("dot", 4, 32, Options(features=32, query=True, aggregate=True)),
]
TRIVIAL = Unit("trivial", ("trivial",), '#include "common.cuh"\nstruct A { int* out; };\n'
               "GNNB_ENTRY(trivial, A, 32, args.out[threadIdx.x] = WHAT;)\n")  # fmt: skip


def with_body(what: str) -> Unit:
    return Unit(TRIVIAL.name, TRIVIAL.entries, TRIVIAL.source.replace("WHAT", what))


def fast_units() -> set[str]:
    """Names of the fast units: vector accesses, no tail, the wanted values a lane."""
    names = {merge_unit(dtype).name for dtype in DTYPE_NAMES.values()}
    for dtype in DTYPE_NAMES.values():
        for heads in (1, 2, 4, 8, 16):
            for dim in range(8, 1025, 8):
                shape = shape_for(dtype, heads, dim)
                values = PACKED_VALUES if on_tensor_cores(dtype, shape) else VALUES
                if shape.vector and shape.full and shape.values <= values:
                    names.update(unit_of(name, dtype, heads, dim).name for name in FUNCTORS)
    return names


def spills(unit: Unit, arch: str) -> list[Resources]:
    """Compile a unit, check the report, and return the kernels that spill or use a stack."""
    code, resources = compile_unit(unit, arch)
    assert code.startswith(b"\x7fELF")
    assert sorted(r.name for r in resources) == sorted(unit.entries)
    assert all(r.arch == arch and 0 < r.registers <= 255 for r in resources)
    return [r for r in resources if r.spill_bytes or r.stack_bytes]


def units_of(dtype: str) -> list[Unit]:
    return [unit for unit in all_units() if dtype in unit.name.split("_")]


def test_each_unit_is_of_one_dtype() -> None:
    found = [unit for dtype in DTYPE_NAMES.values() for unit in units_of(dtype)]
    assert sorted(unit.name for unit in found) == sorted(unit.name for unit in all_units())
    assert len(fast_units()) > 30 and fast_units() <= {unit.name for unit in found}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPE_NAMES.values())
@pytest.mark.parametrize("arch", SOME_ARCHS)
@pytest.mark.thorough
def test_every_unit(arch: str, dtype: str) -> None:
    fast = fast_units()
    units = units_of(dtype)
    if arch == EVERY_UNIT and dtype != "f16":
        usual = {unit_of(name, dtype, *shape).name for name in FUNCTORS for shape in USUAL}
        units = [u for u in units if u.name.startswith(("gatv2", "merge")) or u.name in usual]
        assert usual <= {unit.name for unit in units} and len(units) > 40
    else:
        # float16 differs from bfloat16 in the names of instructions alone.
        shapes = FEW if arch == EVERY_UNIT or dtype != "f16" else FEW[:1]
        names = {merge_unit(dtype).name, *(unit_of(n, dtype, *FEW[0]).name for n in FUNCTORS)}
        names |= {unit_of("gatv2", dtype, *shape).name for shape in shapes}
        units = [unit for unit in units if unit.name in names]
        assert len(units) == len(names) >= 4 and sum(unit.name in fast for unit in units) >= 4
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda unit: spills(unit, arch), units))
    found = [f for unit, f in zip(units, found, strict=True) if unit.name in fast]
    assert not [r for kernels in found for r in kernels if r.spill_bytes > MOST_SPILLED]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "step"), [("f32", 2), ("bf16", 3)])
def test_units_with_edge_operands_spill_little(dtype: str, step: int) -> None:
    """A few registers, which cost less than a block less would, as measured."""
    units = []
    for name, heads, dim, options in FURTHER[::step]:
        functor, shape, fragment = FUNCTORS[name], shape_for(dtype, heads, dim), None
        if options.features:
            shape, fragment = shapes_with_features(dtype, heads, dim, options.features)
        form = (functor.cuda_type, functor.cuda_header, dtype, shape)
        units.append(softmax_unit(*form, None, options, fragment))
        if options.cotangent or options.query:
            units.append(weights_unit(*form, options._replace(weights=True), fragment))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda unit: spills(unit, "sm_90"), units))
    assert not [r for kernels in found for r in kernels if r.spill_bytes > MOST_SPILLED]


def test_resources_are_read_from_the_log() -> None:
    log = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    40 bytes stack frame, 52 bytes spill stores, 64 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 40 bytes cumulative stack size
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
"""
    assert compiler._parse_log(log) == [
        Resources("first", "sm_90", 96, 116, 40),
        Resources("second", "sm_90", 24, 0, 0),
    ]


def test_a_spill_is_reported() -> None:
    """120 live values and an indexed array, in a kernel bounded to 32 registers, do not fit."""
    source = """
#include "common.cuh"
struct A { float* out; i64 n; };
extern "C" __global__ void __launch_bounds__(1024, 2) spills(const A args) {
    float x[120];
    #pragma unroll
    for (int i = 0; i < 120; i++) x[i] = args.out[i * 1024 + threadIdx.x];
    for (int k = 0; k < args.n; k++)
        #pragma unroll
        for (int i = 0; i < 120; i++) x[i] = fmaf(x[i], x[(i * 7 + 1) % 120], x[(i + 3) % 120]);
    #pragma unroll
    for (int i = 0; i < 120; i++) args.out[i * 1024 + threadIdx.x] = x[i];
}
"""
    _, (resources,) = compile_unit(Unit("spills", ("spills",), source), "sm_90")
    assert resources.registers <= 32 and resources.spill_bytes > 0 and resources.stack_bytes > 0


def test_an_error_carries_the_compilers_log() -> None:
    with pytest.raises(KernelCompileError, match="trivial did not compile for sm_90") as caught:
        compile_unit(with_body("undeclared_name"), "sm_90")
    assert 'identifier "undeclared_name" is undefined' in caught.value.log


def test_an_architecture_that_nvrtc_does_not_know() -> None:
    with pytest.raises(KernelCompileError, match="did not compile for sm_13"):
        compile_unit(with_body("1"), "sm_13")


def test_a_virtual_architecture_gives_ptx() -> None:
    code, _ = compile_unit(with_body("1"), "compute_90")
    assert code.startswith(b"//") and b".target sm_90" in code and code.endswith(b"\0")


@pytest.mark.parametrize(
    ("capability", "target"),
    [((8, 0), "sm_80"), ((9, 0), "sm_90"), ((12, 0), "sm_120"), ((99, 0), "compute_")],
)
def test_target_of_a_chip(capability: tuple[int, int], target: str) -> None:
    found = compiler.target_for(capability)
    assert found.startswith(target)
    if target.startswith("compute_"):
        compile_unit(with_body("1"), found)


def test_a_chip_older_than_any_that_is_supported() -> None:
    with pytest.raises(Unsupported) as caught:
        compiler.target_for((1, 0))
    assert caught.value.reason == "arch-unsupported"


def test_version() -> None:
    assert compiler.nvrtc_version() >= (11, 0)


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)
    for call in (lambda: compile_unit(with_body("1"), "sm_90"), compiler.nvrtc_version):
        with pytest.raises(Unsupported) as caught:
            call()
        assert caught.value.reason == "no-cupy"

"""Composed modules: hashed file names, one compilation for all processes, clear errors."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout
from numba import types as numba_types

import gnn_backend.config
from gnn_backend.errors import KernelCompileError
from gnn_backend.runtime import cpu_module
from gnn_backend.runtime.cpu_module import Variant

FLOAT32 = Variant(torch.float32, torch.int32, 1)

PROCESS = """
import json, sys, time
import torch
from numba.core import event
from gnn_backend.runtime import cpu, cpu_call, cpu_module
from tests.runtime.cpu_cases import GATV2, SLOPE, gatv2_operands, skewed_graph

cpu_call.BLOCK_WORK = 1
torch.set_num_threads(2)
graph = skewed_graph()
operands = gatv2_operands(graph, 2, 16)
with event.install_recorder("numba:compile") as compiled:
    out, *_ = cpu.softmax_forward(GATV2, graph, operands, SLOPE)
loop = cpu_module.run_blocks(parallel=True)
print(json.dumps({
    "compiled": len(compiled.buffer),
    "kernel_hits": {name: k.cache_hits for (_, name), k in cpu_module._kernels.items()},
    "loop_hits": sum(loop.stats.cache_hits.values()),
    "out": out.double().sum().item(),
}))
"""


def _process(cache: Path) -> dict:
    root = Path(__file__).parents[2]
    environment = os.environ | {"GNN_BACKEND_CACHE_DIR": str(cache), "PYTHONPATH": str(root)}
    result = subprocess.run(
        [sys.executable, "-c", PROCESS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    first, second = _process(tmp_path), _process(tmp_path)
    assert first["compiled"] > 0
    assert set(first["kernel_hits"].values()) == {0}
    assert second["compiled"] == 0
    assert second["kernel_hits"] == {"forward": 1, "merge_forward": 1}
    assert second["loop_hits"] == 1
    assert second["out"] == first["out"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(gnn_backend.config.config, "cache_dir", tmp_path)
    return tmp_path


def test_an_edit_of_the_functor_changes_the_file(cache, tmp_path):
    original = cpu_module.functor_path("gatv2")
    edited = tmp_path / "gatv2.py"
    edited.write_text(original.read_text().replace("return total * param", "return param * total"))
    modules = [cpu_module.softmax_module(path, FLOAT32) for path in (original, edited)]
    files = {Path(module.__file__) for module in modules}
    assert len(files) == 2
    assert all(file.parent == cache / "numba" for file in files)
    assert cpu_module.softmax_module(original, FLOAT32) is modules[0]


def test_variants_have_files_of_their_own(cache):
    functor = cpu_module.functor_path("gatv2")
    variants = [
        FLOAT32,
        Variant(torch.float64, torch.int32, 1),
        Variant(torch.float32, torch.int64, 1),
        Variant(torch.float32, torch.int32, 1, frozenset({"grad_query"})),
        Variant(torch.float32, torch.int32, 2),
    ]
    texts = [cpu_module.compose(functor, variant) for variant in variants]
    assert len(set(texts)) == len(variants)
    assert "REAL = types.float64" in texts[1]
    assert "OFFSET = types.int64" in texts[2]
    assert "GRAD_QUERY = REAL" in texts[3]
    assert "WIDE = 2" in texts[4]
    assert "GRAD_PARAM = None" in texts[3]


def test_a_composed_module_imports_no_template(cache):
    text = cpu_module.compose(cpu_module.functor_path("gatv2"), FLOAT32)
    assert "numba_templates" not in text
    module = cpu_module.softmax_module(cpu_module.functor_path("gatv2"), FLOAT32)
    assert module.KEY == "x_src"


def test_the_order_of_arguments_is_that_of_their_fields():
    text = (cpu_module.TEMPLATES / "common.py").read_text()
    body = text[text.index("return Arguments(") : text.index("# ---", text.index("return Arg"))]
    indices = [int(line.split(",")[1]) for line in body.splitlines() if "field(" in line]
    module = cpu_module.softmax_module(cpu_module.functor_path("gatv2"), FLOAT32)
    fields = module.Arguments._fields
    assert indices == [i for i, name in enumerate(fields) if name != "scalars"]
    assert f"field(address, {fields.index('scalars')}, REAL)" in text


def test_a_kernel_that_does_not_compile_says_why(cache, tmp_path):
    broken = tmp_path / "broken.py"
    source = cpu_module.functor_path("gatv2").read_text()
    broken.write_text(source.replace("z * scalars[0]", 'z * "two"'))
    module = cpu_module.softmax_module(broken, FLOAT32)
    with pytest.raises(KernelCompileError, match="CPU kernel forward does not compile") as caught:
        cpu_module.kernel_address(module, "forward")
    assert "broken" in caught.value.log or "No match" in caught.value.log


class Step:
    """Stands for the tensors of a training step."""


def test_compiling_keeps_nothing_of_the_caller(cache, monkeypatch):
    """Numba keeps errors of typing in cycles, of which ones the order of its sets decides."""

    def keep_an_error(kernel):
        try:
            raise TypeError("no such overload")
        except TypeError as error:
            kept = error  # its traceback holds this frame
        return types.SimpleNamespace(address=1, kept=kept.args)

    def step():
        held = Step()
        assert cpu_module.kernel_address(module, "stats") == 1
        return weakref.ref(held)

    module = cpu_module.softmax_module(cpu_module.functor_path("gatv2"), FLOAT32)
    monkeypatch.setattr(cpu_module, "_kernels", {})
    monkeypatch.setattr(cpu_module.numba, "cfunc", lambda *_, **__: keep_an_error)
    gc.disable()
    try:
        assert step()() is None, "a frame of the compilation keeps those that called it"
    finally:
        gc.enable()


EXPAND = (numba_types.Array(numba_types.int64, 1, "C"),) * 2


def test_functions_are_compiled_by_one_process_into_the_cache(cache, monkeypatch):
    """Numba itself may give the machine code of two signatures one name, and mix them for good."""
    held = []

    def compile_while_locked(name, work):
        (lock,) = (cache / "numba").glob("counting_sort_*.lock")
        with pytest.raises(Timeout), FileLock(str(lock), timeout=0, is_singleton=False):
            pass
        held.append(name)
        return work()

    monkeypatch.setattr(cpu_module, "_functions", {})
    monkeypatch.setattr(cpu_module, "_compile", compile_while_locked)
    rows = np.empty(3, np.int64)
    for _ in range(2):
        cpu_module.compiled("counting_sort", "expand", EXPAND)(np.array([0, 1, 3]), rows)
    assert rows.tolist() == [0, 1, 1] and held == ["expand"]
    assert list((cache / "numba" / "__pycache__").glob("counting_sort_*.nbi"))

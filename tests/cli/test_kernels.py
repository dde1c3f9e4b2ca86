"""``kernels``: resources of compiled instances, and cubins that another machine can use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnn_backend.bench import environment
from gnn_backend.bench.yardstick import all_units
from gnn_backend.cli.kernels import every_unit
from gnn_backend.config import override
from gnn_backend.runtime import compile as compiler

needs_nvrtc = pytest.mark.skipif(environment.nvrtc_version() is None, reason="no CuPy with NVRTC")


@needs_nvrtc
def test_report_and_carried_cubins(
    invoke: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cubins"
    arguments = ("kernels", "--only", "yardstick_f32", "--arch", "sm_80,sm_90", "--json")
    result = invoke(*arguments, "--build", folder)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    unit = next(u for u in all_units() if u.name.startswith("yardstick_f32"))
    for arch in ("sm_80", "sm_90"):
        assert {r["name"] for r in rows if r["arch"] == arch} == set(unit.entries)
    assert len(rows) == 2 * len(unit.entries)
    for row in rows:
        assert row.keys() == {"name", "arch", "registers", "spill_bytes", "stack_bytes"}
        assert 8 <= row["registers"] <= 255 and row["spill_bytes"] == 0
    assert "2 cubins" in result.stderr

    def compile_nothing(*_: Any) -> None:
        raise AssertionError("a carried cubin was compiled again")

    monkeypatch.setattr(compiler, "compile_unit", compile_nothing)
    with override(kernel_path=(folder,), cache_dir=tmp_path / "empty"):
        code = compiler.cubin(unit, "sm_90")
    assert code.startswith(b"\x7fELF") and len(list(folder.iterdir())) == 2


def test_every_unit_is_listed_once_and_holds_the_yardstick() -> None:
    names = [unit.name for unit in every_unit()]
    assert len(set(names)) == len(names) > 50
    assert "yardstick_bf16_w128" in names


@needs_nvrtc
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "sm_91"], "'sm_91'"),
        (["--arch", ","], "expected names among"),
        (["--only", "nothing-like-this"], "no unit's name contains"),
    ],
)
def test_bad_usage(invoke: Callable[..., Any], arguments: list[str], message: str) -> None:
    result = invoke("kernels", *arguments)
    assert result.exit_code == 2 and message in result.stderr


def test_without_nvrtc(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "nvrtc_version", lambda: None)
    result = invoke("kernels")
    assert result.exit_code == 1 and "pip install 'gnn_backend[cuda13]'" in result.stderr

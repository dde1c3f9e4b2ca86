"""Cubins on disk: read when there, compiled once when not, by one process of several."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_backend import config
from gnn_backend.errors import KernelCompileError
from gnn_backend.runtime import compile as compiler
from gnn_backend.runtime.compile import Resources, cubin, cubin_name, write_cubin
from gnn_backend.runtime.instances import Unit

UNIT = Unit("add", ("add",), "// the text of a kernel")
REPORT = [Resources("add", "sm_90", 8, 0, 0)]


class Compiler:
    """Stands in for NVRTC; leaves a file for every compilation, so that processes can count."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def __call__(self, unit: Unit, arch: str) -> tuple[bytes, list[Resources]]:
        time.sleep(0.05)  # long enough for a second process to find no file yet
        (self.folder / f"{time.monotonic_ns()}").touch()
        return f"{unit.source} for {arch}".encode(), REPORT

    @property
    def count(self) -> int:
        return len(list(self.folder.iterdir()))


@pytest.fixture
def nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    stand_in = Compiler(tmp_path / "compilations")
    monkeypatch.setattr(compiler, "compile_unit", stand_in)
    with config.override(cache_dir=tmp_path / "cache", kernel_path=()):
        yield stand_in


def test_the_second_call_reads_the_file(nvrtc: Compiler, tmp_path: Path) -> None:
    first = cubin(UNIT, "sm_90")
    assert first == b"// the text of a kernel for sm_90"
    assert cubin(UNIT, "sm_90") == first and nvrtc.count == 1
    assert cubin(UNIT, "sm_80") != first and nvrtc.count == 2
    kept = {p.name for p in (tmp_path / "cache" / "cubin").glob("*.cubin")}
    assert kept == {cubin_name(UNIT, "sm_80"), cubin_name(UNIT, "sm_90")}
    assert not list((tmp_path / "cache" / "cubin").glob("*.tmp"))


def test_another_text_has_another_file(nvrtc: Compiler) -> None:
    edited = Unit(UNIT.name, UNIT.entries, UNIT.source + ", edited")
    assert cubin_name(edited, "sm_90") != cubin_name(UNIT, "sm_90")
    assert cubin(UNIT, "sm_90") != cubin(edited, "sm_90") and nvrtc.count == 2


def test_carried_cubins_come_first(nvrtc: Compiler, tmp_path: Path) -> None:
    cubin(UNIT, "sm_90")
    empty, carried = tmp_path / "empty", tmp_path / "carried"
    empty.mkdir(), carried.mkdir()
    (carried / cubin_name(UNIT, "sm_90")).write_bytes(b"built elsewhere")
    with config.override(kernel_path=(empty, tmp_path / "missing", carried)):
        assert cubin(UNIT, "sm_90") == b"built elsewhere"
        cubin(UNIT, "sm_80")
    assert nvrtc.count == 2


def test_written_cubins_can_be_carried(nvrtc: Compiler, tmp_path: Path) -> None:
    assert write_cubin(tmp_path, UNIT, "sm_90") == REPORT
    with config.override(kernel_path=(tmp_path,)):
        assert cubin(UNIT, "sm_90") == b"// the text of a kernel for sm_90"
    assert nvrtc.count == 1


def _ask(answers: multiprocessing.Queue[bytes], start: multiprocessing.Barrier) -> None:
    start.wait()
    answers.put(cubin(UNIT, "sm_90"))


def test_processes_compile_once(nvrtc: Compiler) -> None:
    fork = multiprocessing.get_context("fork")
    answers, start = fork.Queue(), fork.Barrier(4)
    children = [fork.Process(target=_ask, args=(answers, start)) for _ in range(4)]
    for child in children:
        child.start()
    found = {answers.get(timeout=30) for _ in children}
    for child in children:
        child.join(timeout=30)
        assert child.exitcode == 0
    assert found == {b"// the text of a kernel for sm_90"} and nvrtc.count == 1


def test_a_failed_compilation_leaves_nothing(
    nvrtc: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(unit: Unit, arch: str) -> None:
        raise KernelCompileError(f"{unit.name} did not compile for {arch}", "line 1: error")

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compile_unit", fail)
        with pytest.raises(KernelCompileError, match="line 1: error"):
            cubin(UNIT, "sm_90")
    folder = tmp_path / "cache" / "cubin"
    assert not list(folder.glob("*.cubin")) and not list(folder.glob("*.tmp"))
    assert cubin(UNIT, "sm_90") and nvrtc.count == 1

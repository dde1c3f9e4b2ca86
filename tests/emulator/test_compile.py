"""Compiling: what is cached, what is rewritten, and what is said when it fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from gnn_backend import config
from gnn_backend.errors import KernelCompileError, Unsupported
from gnn_backend.runtime import emulator
from tests.emulator.support import launch

ADD = r"""
struct Args { int* out; };
GNNB_ENTRY(add, Args, 32, args.out[threadIdx.x] += DELTA;)
"""


def _source(delta: object) -> str:
    return f"#define DELTA {delta}\n{ADD}"


def test_a_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = torch.zeros(32, dtype=torch.int32)
    with config.override(cache_dir=tmp_path):
        launch(_source(3), "add", 32, out)
        emulator._load.cache_clear()  # as in a new process

        def fail(*_: object) -> None:
            pytest.fail("compiled although the library is in the cache")

        monkeypatch.setattr(emulator, "_compile", fail)
        launch(_source(3), "add", 32, out)
    assert (out == 6).all()
    assert len(list((tmp_path / "emulator").glob("*.so"))) == 1


def test_an_edited_header_compiles_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = tmp_path / "kernels"
    shutil.copytree(emulator.KERNELS, kernels)
    monkeypatch.setattr(emulator, "KERNELS", kernels)
    source = f'#include "delta.cuh"\n{ADD}'
    results = []
    for delta in (1, 5):
        (kernels / "delta.cuh").write_text(f"#define DELTA {delta}\n")
        emulator.headers_digest.cache_clear()
        emulator._load.cache_clear()
        out = torch.zeros(32, dtype=torch.int32)
        launch(source, "add", 32, out)
        results.append(out[0].item())
    monkeypatch.undo()
    emulator.headers_digest.cache_clear()
    assert results == [1, 5]


def _commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The compiler's command lines from now on."""
    seen, run = [], emulator._run_compiler

    def record(command: list[str]) -> str:
        seen.append(command)
        return run(command)

    monkeypatch.setattr(emulator, "_run_compiler", record)
    return seen


def test_the_host_header_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _commands(monkeypatch)
    with config.override(cache_dir=tmp_path):
        for delta in (21, 22):
            out = torch.zeros(32, dtype=torch.int32)
            launch(_source(delta), "add", 32, out)
            assert (out == delta).all()
    assert ["c++-header" in command for command in commands] == [True, False, False, False, False]
    (header,) = (tmp_path / "emulator").glob("host-*/cuda_host.h.gch")
    text = emulator._run_compiler([*commands[-2]])
    assert f'#pragma GCC pch_preprocess "{header}"' in text
    assert len(text) < 100_000  # the system's headers alone are several times that


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_without_a_precompiled_header(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that makes none, or refuses the one that is there, reads the header itself."""
    if how == "missing":
        monkeypatch.setattr(emulator, "_precompiled_host", lambda *_: None)
    with config.override(cache_dir=tmp_path):
        for delta in (31, 32):
            out = torch.zeros(32, dtype=torch.int32)
            launch(_source(delta), "add", 32, out)
            assert (out == delta).all()
            for header in (tmp_path / "emulator").glob("host-*/*.gch"):
                header.write_bytes(header.read_bytes()[:100_000])


def test_an_edited_host_header_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = tmp_path / "kernels"
    shutil.copytree(emulator.KERNELS, kernels)
    monkeypatch.setattr(emulator, "KERNELS", kernels)
    host = kernels / "emulator" / "cuda_host.h"
    results = []
    for delta in (1, 5):
        host.write_text(f"{(emulator.KERNELS / 'emulator' / 'cuda_host.h').read_text()}\n"
                        f"#undef DELTA\n#define DELTA {delta}\n")  # fmt: skip
        emulator.headers_digest.cache_clear()
        emulator._load.cache_clear()
        out = torch.zeros(32, dtype=torch.int32)
        launch(ADD, "add", 32, out)
        results.append(out[0].item())
    monkeypatch.undo()
    emulator.headers_digest.cache_clear()
    assert results == [1, 5]


def test_compiler_output_is_in_the_error() -> None:
    out = torch.zeros(32, dtype=torch.int32)
    with pytest.raises(KernelCompileError) as caught:
        launch(_source("undeclared_name"), "add", 32, out)
    assert "undeclared_name" in caught.value.log
    assert "does not compile for the emulator" in str(caught.value)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    out = torch.zeros(32, dtype=torch.int32)
    with pytest.raises(Unsupported, match=r"install it .*g\+\+") as caught:
        launch(_source(11), "add", 32, out)
    assert caught.value.reason == "no-compiler"


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        (
            "__shared__ float a;",
            "static ::gnnb_emu::Shared<float > a_storage;auto& a = a_storage.get();",
        ),
        (
            "__shared__ Pair<int, 4> a[N < 3 ? 1 : 2][M], *b;",
            "static ::gnnb_emu::Shared<Pair<int, 4> [N < 3 ? 1 : 2][M]> a_storage;"
            "auto& a = a_storage.get();"
            "static ::gnnb_emu::Shared<Pair<int, 4> * > b_storage;auto& b = b_storage.get();",
        ),
        (
            "static __shared__ alignas(16)\nunsigned char a[f(1, 2)];",
            "static ::gnnb_emu::Shared<unsigned char [f(1, 2)], (16)> a_storage;"
            "auto& a = a_storage.get();\n",
        ),
        (
            "extern __shared__ float4 a[];",
            "auto& a = ::gnnb_emu::dynamic_shared<float4 []>();",
        ),
        ("int __shared__x = 1;", "int __shared__x = 1;"),
    ],
)
def test_shared_declarations_are_rewritten(declaration: str, expected: str) -> None:
    text = emulator.rewrite_shared(f"before {declaration} after;")
    assert text == f"before {expected} after;"


@pytest.mark.parametrize("declaration", ["__shared__ int a = 3;", "__shared__ ;", "__shared__ a;"])
def test_unreadable_shared_declarations_are_refused(declaration: str) -> None:
    with pytest.raises(KernelCompileError, match="cannot read the declaration"):
        emulator.rewrite_shared(declaration)

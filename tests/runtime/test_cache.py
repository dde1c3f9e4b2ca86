"""A cache directory that cannot be written costs compilations, not acceleration."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_backend import config
from gnn_backend.errors import KernelCompileError
from gnn_backend.ops.attention import gatv2_attention
from gnn_backend.profile import profile
from gnn_backend.runtime import cache
from gnn_backend.runtime import compile as compiler
from gnn_backend.runtime.instances import Unit
from tests.runtime import cpu_cases


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    """A cache directory that not even root can make: a file is in the way."""
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "cache"
    with config.override(cache_dir=folder):
        yield folder


@pytest.mark.parametrize("part", cache.PARTS)
def test_the_cache_directory_is_used_where_it_can_be(tmp_path: Path, part: str) -> None:
    with config.override(cache_dir=tmp_path / "new"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.writable_folder(part) == tmp_path / "new" / part
    assert list((tmp_path / "new" / part).iterdir()) == []


def test_another_folder_is_private_and_warned_of_once(unwritable: Path) -> None:
    with pytest.warns(RuntimeWarning, match="GNN_BACKEND_CACHE_DIR") as caught:
        folders = [cache.writable_folder(part) for part in (*cache.PARTS, "numba")]
    assert len(caught) == 1 and str(unwritable) in str(caught[0].message)
    assert folders[-1] == folders[cache.PARTS.index("numba")]
    (parent,) = {folder.parent for folder in folders}
    assert parent.stat().st_mode & 0o777 == 0o700
    assert Path(tempfile.gettempdir()) in parent.parents


def test_one_part_alone_may_be_unwritable(tmp_path: Path) -> None:
    (tmp_path / "numba").write_text("in the way")
    with config.override(cache_dir=tmp_path), pytest.warns(RuntimeWarning, match="cannot be wri"):
        assert cache.writable_folder("cubin") == tmp_path / "cubin"
        assert cache.writable_folder("numba").parent != tmp_path


def test_no_folder_at_all(
    unwritable: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cache, "_temporary", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(KernelCompileError, match=r"neither in .*set GNN_BACKEND_CACHE_DIR"):
        cache.writable_folder("numba")


@pytest.mark.filterwarnings("ignore:the cache directory")
def test_cubins_are_compiled_once_a_process(
    unwritable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_unit(unit: Unit, arch: str) -> tuple[bytes, list[compiler.Resources]]:
        compiled.append(arch)
        return b"machine code", []

    monkeypatch.setattr(compiler, "compile_unit", compile_unit)
    unit = Unit("add", ("add",), f"// {unwritable}")
    assert [compiler.cubin(unit, "sm_90") for _ in range(2)] == [b"machine code"] * 2
    assert compiled == ["sm_90"]


@pytest.mark.filterwarnings("ignore:the cache directory")
@pytest.mark.parametrize("target", ["numba", "emulator"])
def test_operators_run(unwritable: Path, target: str) -> None:
    graph = cpu_cases.skewed_graph(9, 8, 40)
    operands = cpu_cases.gatv2_operands(graph, 2, 4)
    with config.override(cpu_target=target), profile() as counted:
        out = gatv2_attention(graph, operands["x_src"], operands["x_dst"], operands["att"])
    assert {name for name, _ in counted.launches} == {target}
    expected = {"out": cpu_cases.reference(graph, operands)["out"]}
    cpu_cases.assert_close({"out": out}, expected, 2e-5)


PROCESS = """
import json, multiprocessing, os, sys
from pathlib import Path
from gnn_backend.runtime import cache

def child():
    print(json.dumps(str(cache.writable_folder("cubin"))), flush=True)

if sys.argv[1] == "own":
    child()
elif sys.argv[1] == "child":
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start(), process.join()
else:  # a copy of the process that ends as if it were the original
    child()
    if os.fork() == 0:
        sys.exit()
    os.wait()
    assert cache.writable_folder("cubin").is_dir()
"""


@pytest.mark.parametrize("who", ["own", "child", "copy"])
def test_the_folder_goes_with_its_process(who: str, tmp_path: Path) -> None:
    if who != "own" and "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork")
    (tmp_path / "file").write_text("in the way")
    environment = os.environ | {
        "GNN_BACKEND_CACHE_DIR": str(tmp_path / "file"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, "-W", "ignore", "-c", PROCESS, who]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout))
    assert tmp_path in folder.parents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

"""``doctor`` and ``cache``: a healthy machine, and each thing that can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnn_backend.bench import environment
from gnn_backend.cli import doctor, smoke
from gnn_backend.config import get_config, override

GPU = {"name": "Test GPU", "arch": "sm_90", "memory_bytes": 1, "count": 1}


def test_report(invoke_json: Callable[..., Any]) -> None:
    report = invoke_json("doctor")
    assert report["ok"] and report["problems"] == []
    needed = {"python", "torch", "numpy", "numba", "tbb", "dgl", "torch_geometric"}
    needed |= {"torch_scatter", "cupy", "nvrtc", "driver", "g++"}
    assert needed <= report["versions"].keys()
    assert report["cache"]["path"] == str(get_config().cache_dir) and report["cache"]["writable"]
    assert report["compile"]["numba"]["ok"]
    for host in report["hosts"].values():
        assert host["installed"] is False or all(seam["found"] for seam in host["seams"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """No compilation; its result can be changed."""
    compiles = {"numba": {"ok": True, "seconds": 0.0, "detail": "ran"}}
    monkeypatch.setattr("gnn_backend.cli.smoke.smoke_compiles", lambda: compiles)
    return compiles


def test_unwritable_cache(
    invoke_json: Callable[..., Any], tmp_path: Path, quick: dict[str, Any]
) -> None:
    (tmp_path / "file").write_text("")
    with override(cache_dir=tmp_path / "file" / "cache"):
        report = invoke_json("doctor", exit_code=1)
    (problem,) = report["problems"]
    assert "cannot be written" in problem["what"] and "GNN_BACKEND_CACHE_DIR" in problem["fix"]


def test_cache_with_an_unwritable_part(tmp_path: Path) -> None:
    (tmp_path / "numba").write_text("in the way")
    with override(cache_dir=tmp_path):
        assert doctor.cache_report()["writable"] is False
    (tmp_path / "numba").unlink()
    with override(cache_dir=tmp_path):
        assert doctor.cache_report()["writable"] is True


def test_failed_compile(invoke: Callable[..., Any], quick: dict[str, Any]) -> None:
    quick["numba"] = {"ok": False, "seconds": 0.0, "detail": "ImportError: no tbb"}
    result = invoke("doctor")
    assert result.exit_code == 1
    assert "ImportError: no tbb" in result.output and "pip install" in result.output


def test_host_that_does_not_import(
    invoke: Callable[..., Any], invoke_json: Callable[..., Any], quick: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("gnn_backend.bench.hosts.installed", lambda host: host == "pyg")
    monkeypatch.setitem(sys.modules, "torch_geometric.nn.conv", None)
    report = invoke_json("doctor", exit_code=1)
    assert report["hosts"]["dgl"]["installed"] is False
    (problem,) = report["problems"]
    assert "ModuleNotFoundError: import of torch_geometric.nn.conv halted" in problem["what"]
    assert problem["fix"] in invoke("doctor").output, "brackets are no markup"


@pytest.mark.parametrize(
    ("archs", "nvrtc", "driver", "target", "problem"),
    [
        ([80, 90], (13, 5), (13, 0), "sm_90", None),  # an older minor version loads cubins
        ([80, 90], (13, 0), (12, 9), "sm_90", "the driver supports CUDA 12.9"),
        ([80], (12, 0), (12, 4), "compute_80", None),  # the driver finishes older PTX
        ([80], (12, 8), (12, 4), "compute_80", "the driver supports CUDA 12.4"),
        ([100], (13, 0), (13, 0), None, "cannot compile for this GPU"),
        ([], None, (13, 0), None, "CuPy with NVRTC is not"),
    ],
)
def test_gpu_match(
    monkeypatch: pytest.MonkeyPatch,
    archs: list[int],
    nvrtc: tuple[int, int] | None,
    driver: tuple[int, int],
    target: str | None,
    problem: str | None,
) -> None:
    monkeypatch.setattr(environment, "device_report", lambda: GPU)
    monkeypatch.setattr(environment, "nvrtc_archs", lambda: archs)
    monkeypatch.setattr(environment, "nvrtc_version", lambda: nvrtc)
    monkeypatch.setattr(environment, "driver_cuda_version", lambda: driver)
    gpu = environment.gpu_match()
    assert gpu["target"] == target
    assert gpu["match"] is (problem is None)
    problems = doctor._gpu_problems({"gpu": gpu, "versions": {"cupy": "14.2"}})
    assert [problem in p["what"] for p in problems if problem] == [True] * bool(problem)
    assert len(problems) == bool(problem)


@pytest.mark.parametrize(
    ("archs", "device", "tried"),
    [
        ([50, 75, 80, 90], None, "sm_80"),
        ([90, 100], None, "sm_90"),
        ([50, 75], None, None),
        ([], None, None),
        ([80, 90, 100], GPU, "sm_90"),
        ([75, 80], GPU, "compute_80"),
        ([100], GPU, None),
    ],
)
def test_nvrtc_is_tried_on_what_it_supports(
    monkeypatch: pytest.MonkeyPatch,
    archs: list[int],
    device: dict[str, Any] | None,
    tried: str | None,
) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(environment, "nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(environment, "nvrtc_archs", lambda: archs)
    monkeypatch.setattr(environment, "device_report", lambda: device)
    monkeypatch.setattr(smoke, "_run_on_cpu", lambda target: target)
    monkeypatch.setattr(smoke, "_compile_for_gpu", lambda target: compiled.append(target) or target)
    found = smoke.smoke_compiles()["nvrtc"]
    assert compiled == ([tried] if tried else [])
    assert found["ok"] is (True if tried else None)


def test_cache_clear_leaves_other_files(invoke_json: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("cubin/a.cubin", "emulator/b.so", "numba/c/d.py", "mine.txt"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"1234")
    with override(cache_dir=tmp_path):
        info = invoke_json("cache")
        cleared = invoke_json("cache", "clear")
    assert (info["files"], info["bytes"]) == (3, 12)
    assert (cleared["files"], cleared["removed"]) == (0, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_cache_refuses_unknown_actions(invoke: Callable[..., Any]) -> None:
    result = invoke("cache", "erase")
    assert result.exit_code == 2 and "'erase'" in result.stderr

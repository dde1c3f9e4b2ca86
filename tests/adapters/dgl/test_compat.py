"""``import dgl`` after ``import gnn_backend``, on any PyTorch; clear errors for what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gnn_backend.adapters.dgl import compat

ROOT = Path(__file__).resolve().parents[3]
if importlib.util.find_spec("dgl") is None:
    pytest.skip("DGL is not installed", allow_module_level=True)

SCRIPT = """
import json, os, sys, warnings
import gnn_backend
report = {"dgl before": "dgl" in sys.modules}
if sys.argv[1] == "enabled, after a failed import":
    gnn_backend.enable(mode="strict")
    shim = sys.meta_path
    sys.meta_path = [f for f in shim if "compat" not in type(f).__module__]
    try:
        import dgl
        report["stock import"] = "works"
    except Exception as error:
        report["stock import"] = type(error).__name__
    sys.meta_path = shim
import torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import dgl
report["warnings"] = [str(w.message) for w in caught if "dgl" in str(w.message).lower()]
from gnn_backend.adapters.dgl import compat
report["missing"] = compat.missing()
report["torchdata"] = "torchdata" in sys.modules
report["backend"] = os.environ.get("DGLBACKEND")
report["real loader"] = type(dgl.__spec__.loader).__name__

def error_of(code):
    try:
        exec(code, {"dgl": dgl})
    except Exception as error:
        return [type(error).__name__, str(error)]

report["errors"] = {code: error_of(code) for code in (
    "import dgl.graphbolt as gb; gb.DataLoader(1)",
    "from dgl.graphbolt import ItemSet; ItemSet(3)",
    "import dgl.graphbolt.impl",
    "import dgl.graphbolt as gb\\nclass Own(gb.Dataset): pass",
    "import dgl.graphbolt as gb; gb.DataLoader; isinstance(1, gb.DataLoader); repr(gb.X.y)",
    "import dgl.graphbolt as gb; assert not hasattr(gb, '__wrapped__')",
    "import dgl.sparse",
    "dgl.graph(([0], [1])).adj()",
)}
g = dgl.graph(([0, 1, 2], [1, 2, 0]))
conv = dgl.nn.GATv2Conv(3, 2, 2)
conv(g, torch.ones(3, 3)).sum().backward()
report["gradient"] = conv.attn.grad is not None
report["accelerated"] = gnn_backend.profile().accelerated
print(json.dumps(report))
"""


def run(home: Path, how: str, **environment: str) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DGL", "XDG", "GNN_BACKEND"))}
    env.update(HOME=str(home), PYTHONPATH=str(ROOT), **environment)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a new process reports, in an empty home."""
    home = tmp_path_factory.mktemp("home")
    report = run(home, "at once")
    report["files"] = sorted(str(p.relative_to(home)) for p in home.rglob("*"))
    return report


def test_imports_and_runs(fresh: dict[str, Any]) -> None:
    assert fresh["dgl before"] is False
    assert fresh["gradient"] is True
    assert fresh["accelerated"] == 0
    assert fresh["warnings"] == []
    assert fresh["real loader"] == "SourceFileLoader"


def test_no_prompt_and_no_file(fresh: dict[str, Any]) -> None:
    assert fresh["backend"] == "pytorch"
    assert fresh["files"] == []


def test_clear_errors_on_use(fresh: dict[str, Any]) -> None:
    if "dgl.graphbolt" not in fresh["missing"]:
        pytest.skip("this PyTorch has a graphbolt library")
    assert fresh["torchdata"] is False
    free = [code for code, error in fresh["errors"].items() if error is None]
    assert sorted(code.partition("; ")[2][:13] for code in free) == [
        "assert not ha",
        "gb.DataLoader",
    ]
    for code, error in fresh["errors"].items():
        if error is not None:
            kind, message = error
            assert kind == "ImportError", code
            assert "cannot be used" in message, code
            assert "library for PyTorch" in message, code
            assert "dgl.dataloading" in message or "dgl.ops" in message, code


@pytest.mark.thorough
def test_after_a_failed_import(tmp_path: Path) -> None:
    report = run(tmp_path, "enabled, after a failed import", DGLBACKEND="pytorch")
    assert report["gradient"] is True
    assert report["accelerated"] == 1


# ---------------------------------------------------------------------- pieces


class FakeLoader:
    """A loader whose module body is a function."""

    def __init__(self, body: Any) -> None:
        self.body = body

    def exec_module(self, module: ModuleType) -> None:
        self.body(module)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    monkeypatch.setattr(compat, "_missing", found)
    yield found


def test_what_loads_is_left_alone(missing: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "_absent_binary", lambda name: None)
    module = ModuleType("dgl.graphbolt")
    compat._load_optional(module, FakeLoader(lambda m: setattr(m, "DataLoader", 7)))
    assert module.DataLoader == 7
    assert not hasattr(module, "anything")
    assert missing == {}


def test_a_dataset_without_its_dependency(
    missing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(module: ModuleType) -> None:
        module.half = 1
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

    monkeypatch.setitem(sys.modules, "dgl.data.made_up.part", ModuleType("part"))
    module = ModuleType("dgl.data.made_up")
    compat._load_optional(module, FakeLoader(body))
    assert "dgl.data.made_up.part" not in sys.modules
    assert "half" not in vars(module)
    assert list(missing) == ["dgl.data.made_up"]
    with pytest.raises(ImportError, match="needs the module 'pandas'"):
        module.half()
    for use in (iter, len, lambda x: x[0], lambda x: setattr(x, "a", 1), lambda x: 1 in x):
        with pytest.raises(ImportError, match=r"dgl\.data\.made_up\.Set cannot be used"):
            use(module.Set)
    with pytest.raises(ImportError), module.Set:
        pass


@pytest.mark.parametrize("tested", [True, False])
def test_version_guard(tested: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = compat.TESTED_VERSIONS[0] if tested else "9.9"
    monkeypatch.setenv("DGLBACKEND", "pytorch")
    module = ModuleType("dgl")
    loader = FakeLoader(lambda m: setattr(m, "__version__", version))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compat._load_dgl(module, loader)
    messages = [str(w.message) for w in caught]
    assert len(messages) == (0 if tested else 1)
    assert all("dgl 9.9" in m and compat.TESTED_VERSIONS[-1] in m for m in messages)


@pytest.mark.parametrize("configured", ["nothing", "variable", "file"])
def test_backend_default(configured: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DGLBACKEND", raising=False)
    monkeypatch.setenv("DGLDEFAULTDIR", str(tmp_path))
    if configured == "variable":
        monkeypatch.setenv("DGLBACKEND", "tensorflow")
    if configured == "file":
        (tmp_path / "config.json").write_text('{"backend": "pytorch"}')
    module = ModuleType("dgl")
    loader = FakeLoader(lambda m: setattr(m, "__version__", compat.TESTED_VERSIONS[0]))
    compat._load_dgl(module, loader)
    want = {"nothing": "pytorch", "variable": "tensorflow", "file": None}[configured]
    assert os.environ.get("DGLBACKEND") == want
    if configured == "nothing":
        monkeypatch.delenv("DGLBACKEND")


def test_installed_once() -> None:
    compat.install()
    compat.install()
    assert sum(type(f).__module__ == compat.__name__ for f in sys.meta_path) == 1

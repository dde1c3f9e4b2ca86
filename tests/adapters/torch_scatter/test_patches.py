"""An installed torch_scatter: what is replaced, when, and that everything comes back."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import gnn_backend
from gnn_backend import config
from gnn_backend.adapters.torch_scatter.provide import NAMES
from gnn_backend.errors import InvalidArgument, StrictFallbackError, VerificationError
from gnn_backend.profile import profile

pytestmark = pytest.mark.usefixtures("unoptimised")
HEAD = """
from gnn_backend.adapters import torch_scatter as ours
calls = []
def answer(name, wrong, args, kwargs):
    calls.append(name)
    return wrong(getattr(ours, name)(*args, **kwargs))
wrong = lambda found: found
"""
#: A function of the library: it answers rightly unless told otherwise, and remembers its calls.
FUNCTION = """
def {name}(src, index, {options}):
    from torch_scatter import base
    return base.answer("{name}", base.wrong, (src, index), {given})
"""


def write_library(folder: Path) -> None:
    """A package with the modules of torch_scatter, whose functions call ours."""
    package = folder / "torch_scatter"
    (package / "composite").mkdir(parents=True)
    lines = ["__version__ = '2.1.2'", "cuda_version = -1", "from . import base"]
    (package / "base.py").write_text(HEAD)
    for module, names in NAMES.items():
        bodies = []
        for name in names:
            options = "dim=-1, out=None, dim_size=None"
            given = "dict(dim=dim, out=out, dim_size=dim_size)"
            if name == "scatter":
                options, given = options + ", reduce='sum'", given[:-1] + ", reduce=reduce)"
            elif module.startswith("segment"):
                options, given = "out=None", "dict(out=out)"
            elif "softmax" in name:
                options, given = "dim=-1", "dict(dim=dim)"
            bodies.append(FUNCTION.format(name=name, options=options, given=given))
        if module == "composite":
            for file, first in (("std", 0), ("logsumexp", 1), ("softmax", 2)):
                last = len(bodies) if file == "softmax" else first + 1
                (package / "composite" / f"{file}.py").write_text("".join(bodies[first:last]))
            files = {"std": names[:1], "logsumexp": names[1:2], "softmax": names[2:]}
            text = [f"from .{file} import {', '.join(held)}" for file, held in files.items()]
            (package / "composite" / "__init__.py").write_text("\n".join(text))
        else:
            (package / f"{module}.py").write_text("".join(bodies))
        lines.append(f"from .{module} import {', '.join(names)}")
    (package / "__init__.py").write_text("\n".join(lines))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An importable torch_scatter, in the place of any other."""
    hidden = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "torch_scatter"}
    for name in hidden:
        del sys.modules[name]
    write_library(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    gnn_backend.disable()
    for name in [n for n in sys.modules if n.partition(".")[0] == "torch_scatter"]:
        del sys.modules[name]
    sys.modules.update(hidden)


def load() -> ModuleType:
    return importlib.import_module("torch_scatter")


def held(module: ModuleType) -> dict[str, object]:
    """Every function that the package holds, wherever."""
    places = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == module.__name__}
    return {f"{n}.{k}": v for n, m in places.items() for k, v in vars(m).items() if callable(v)}


INDEX = torch.tensor([1, 0, 1, 2])


@pytest.mark.parametrize("first", ["import", "enable"])
def test_any_order_and_exact_undo(library: None, first: str) -> None:
    if first == "import":
        module = load()
        before = held(module)
        gnn_backend.enable()
    else:
        gnn_backend.enable()
        module = load()
    with config.override(cpu_target="emulator"), profile() as p:
        module.scatter_sum(torch.ones(4), INDEX)
        module.scatter_max(torch.ones(4), INDEX)
        module.composite.scatter_softmax(torch.ones(4), INDEX)
    names = {"torch_scatter.scatter_sum", "torch_scatter.scatter_max", "torch_scatter.scatter_softmax"}  # fmt: skip # noqa: E501
    assert set(p.by_symbol) == names and p.accelerated == 3 and p.launches
    assert not module.base.calls
    rows = [row for row in gnn_backend.patches() if row.host == "torch_scatter"]
    assert len(rows) == sum(map(len, NAMES.values())) and all(row.active for row in rows)
    gnn_backend.disable()
    assert module.scatter_sum(torch.ones(4), INDEX).tolist() == [1, 2, 1]
    assert module.base.calls == ["scatter_sum"]
    if first == "import":
        assert held(module) == before


def test_the_library_keeps_tensors_on_the_cpu(library: None) -> None:
    gnn_backend.enable(mode="strict")
    module = load()
    with profile() as p:
        module.scatter_mean(torch.ones(4), INDEX)
    assert module.base.calls == ["scatter_mean"] and not p.calls
    assert p.host_operators["torch_scatter.scatter_mean"] == 1


def test_reasons_and_modes(library: None) -> None:
    module = load()
    with config.override(cpu_target="emulator"):
        gnn_backend.enable()
        with profile() as p:
            assert module.scatter_sum(torch.ones(4).long(), INDEX).tolist() == [1, 2, 1]
        assert p.reasons == {"dtype-unsupported": 1} and module.base.calls == ["scatter_sum"]
        gnn_backend.enable(mode="strict")
        with pytest.raises(StrictFallbackError, match="dtype-unsupported"):
            module.scatter_sum(torch.ones(4).long(), INDEX)
        gnn_backend.enable(exclude="scatter_sum")
        with profile() as p:
            module.scatter_sum(torch.ones(4), INDEX)
            module.scatter_mean(torch.ones(4), INDEX)
        assert set(p.by_symbol) == {"torch_scatter.scatter_mean"}
        gnn_backend.enable(hosts="pyg")
        assert module.base.calls == ["scatter_sum", "scatter_sum"]
        with profile() as p:
            module.scatter_mean(torch.ones(4), INDEX)
        assert not p.calls


def test_verify_compares_and_writes_once(library: None) -> None:
    module = load()
    gnn_backend.enable(mode="verify")
    src = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    with config.override(cpu_target="emulator"):
        out = torch.full((3,), 10.0)
        assert module.scatter_sum(src, INDEX, out=out) is out
        assert out.tolist() == [12, 14, 14]
        values, arg = module.scatter_max(src, INDEX, -1, torch.full((3,), 2.5))
        assert values.tolist() == [2.5, 3, 4] and arg.tolist() == [4, 2, 3]
        module.base.wrong = lambda found: found + 1
        with pytest.raises(VerificationError, match=r"torch_scatter\.scatter_sum"):
            module.scatter_sum(src, INDEX)


def test_wrong_arguments_are_the_librarys_to_refuse(library: None) -> None:
    module = load()
    gnn_backend.enable()
    with config.override(cpu_target="emulator"):
        with pytest.raises(TypeError, match=r"scatter_sum\(\)"):
            module.scatter_sum(torch.ones(4))
        with pytest.raises(RuntimeError, match="expanded size"):
            module.scatter_sum(torch.ones(5, 2), INDEX, 0)
        assert not module.base.calls
        with pytest.raises(InvalidArgument, match="no index"):
            module.scatter_sum(torch.ones(4), INDEX.float())
    assert module.base.calls == ["scatter_sum"], "the library is asked for an error of its own"

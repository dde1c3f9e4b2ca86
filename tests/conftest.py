"""Fixtures shared by all tests: acceleration off between tests, and an invented host."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import gnn_backend
from gnn_backend.errors import Unsupported
from gnn_backend.patching import Host, registry

HOST = '''
"""An invented host: layers in a submodule, names re-exported by the package."""
from {name}.conv import Base, Conv, Plain, double
'''

CONV = """
import torch
from torch import nn


def double(x):
    return 2 * x


class Base(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.lin = nn.Linear(width, width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale=1.0):
        self.calls += 1
        if x.shape[-1] != self.lin.in_features:
            raise TypeError("stock: wrong width")
        return nn.functional.dropout(self.lin(x) * scale, 0.5, self.training)

    @staticmethod
    def fixed(x):
        return x + 1

    @classmethod
    def named(cls):
        return cls.__name__


class Conv(Base):
    pass


class Plain(Base):
    def forward(self, x):
        return x
"""

PATCHES = """
import torch
from gnn_backend.dispatch import Dispatcher, layer_patch
from gnn_backend.errors import InvalidArgument, KernelCompileError, Unsupported
from gnn_backend.patching import Patch
from gnn_backend.profile import count_launch

how = {{"fast": "right", "eligible_calls": 0}}


def eligible(layer, x, scale=1.0):
    how["eligible_calls"] += 1
    return "dtype-float64" if x.dtype == torch.float64 else None


def static(layer):
    return "edge-features" if getattr(layer, "edges", False) else None


def fast(layer, x, scale=1.0):
    if how["fast"] == "unsupported":
        raise Unsupported("head-dim")
    if how["fast"] == "uncompilable":
        raise KernelCompileError("no kernel", "line 1: error")
    if how["fast"] == "broken":
        raise ZeroDivisionError("a defect")
    if how["fast"] == "picky" or x.shape[-1] != layer.lin.in_features:
        raise InvalidArgument("ours: wrong width")
    if not torch.compiler.is_compiling():
        count_launch("numba", "fake_conv")
    y = torch.nn.functional.dropout(layer.lin(x) * scale, 0.5, layer.training)
    if how["fast"] == "wrong output":
        y = torch.cat([y[:1] + 0.5, y[1:]])
    if how["fast"] == "wrong gradient":
        y = y + (layer.lin.bias - layer.lin.bias.detach()) * 3
    if how["fast"] == "detached":
        y = y.detach()
    return y


PATCHES = [
    layer_patch("{name}", "{name}.conv", "Conv", eligible="{name}_patches:eligible",
                fast="{name}_patches:fast", static="{name}_patches:static",
                saves=lambda layer, x, scale=1.0: 4 * x.numel()),
    Patch("{name}", "{name}.conv", "double", "double",
          Dispatcher("{name}.double", lambda x: None, lambda x: x + x)),
    Patch("{name}", "{name}.conv", "Base.fixed", "fixed", lambda f: lambda x: f(x) + 10),
    Patch("{name}", "{name}.conv", "Base.named", "named", lambda f: lambda c: f(c) + "!"),
]
"""

_numbers = itertools.count()


class FakeHost:
    """An importable package with layers, and the adapter that accelerates them."""

    def __init__(self, folder: Path) -> None:
        self.name = f"fakehost{next(_numbers)}"
        (folder / self.name).mkdir()
        (folder / self.name / "__init__.py").write_text(HOST.format(name=self.name))
        (folder / self.name / "conv.py").write_text(CONV)
        (folder / f"{self.name}_patches.py").write_text(PATCHES.format(name=self.name))

    def load(self) -> ModuleType:
        """Import the host's package."""
        return importlib.import_module(self.name)

    @property
    def conv(self) -> ModuleType:
        """The module that defines the layers."""
        return importlib.import_module(f"{self.name}.conv")

    @property
    def how(self) -> dict[str, object]:
        """What the fast path shall do, and how often eligibility was asked."""
        return importlib.import_module(f"{self.name}_patches").how


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHost]:
    """An invented host, the only one known during the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    host = FakeHost(tmp_path)
    gnn_backend.disable()
    monkeypatch.setattr(
        registry, "_hosts", {host.name: Host(host.name, host.name, f"{host.name}_patches")}
    )
    monkeypatch.setattr(registry, "_patches", {})
    yield host
    gnn_backend.disable()
    for name in [n for n in sys.modules if n.startswith(host.name)]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _stock_between_tests() -> Iterator[None]:
    yield
    gnn_backend.disable()


@pytest.fixture
def twin_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run attention operators on their plain torch twins, to test what is above the engines."""
    engine = importlib.import_module("tests.ops.twin_engine")
    for user in ("softmax_attention", "attention", "projected_attention"):
        monkeypatch.setattr(f"gnn_backend.ops.{user}.engine_for", lambda *_: engine)


@pytest.fixture
def twin_aggregation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run aggregation on its plain torch twin, for the same end."""
    engine = importlib.import_module("tests.ops.twin_aggregation")

    def find(device: torch.device, dtype: torch.dtype) -> ModuleType:
        if dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            raise Unsupported("dtype-unsupported", str(dtype))
        if device.type != "cpu":
            raise Unsupported("device", str(device))
        return engine

    monkeypatch.setattr("gnn_backend.ops.reduced_messages.aggregation_engine", find)
    monkeypatch.setattr("gnn_backend.runtime.launch.aggregation_engine", find)
    if importlib.util.find_spec("dgl") is not None:
        adapter = importlib.import_module("gnn_backend.adapters.dgl.aggregating")
        monkeypatch.setattr(adapter, "engine_reason", lambda *_, **__: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough", action="store_true", help="all cases of all tests, which takes twice as long"
    )


def _sampled(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Tests to run without ``--thorough``, and the others."""
    seen: Counter[tuple[str, str]] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        mark = item.get_closest_marker("sampled")
        key = str(item.path), getattr(item, "originalname", item.name)
        count = seen[key]
        seen[key] += 1
        skips = item.get_closest_marker("thorough") or (mark and count % mark.args[0])
        (left if skips else kept).append(item)
    return kept, left


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the slow tests, so that no worker ends long after the others.

    Tests of the GPU are skipped where there is none.
    """
    if not config.getoption("--thorough"):
        items[:], left = _sampled(items)
        config.hook.pytest_deselected(items=left)
    items.sort(key=lambda item: "slow" not in item.keywords)
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    """Let garbage collection pass over torch, the hosts and thousands of collected tests."""
    gc.collect()
    gc.freeze()

"""The finder that reports imports, on its own."""

from __future__ import annotations

import importlib
import sys
import types

import pytest

from gnn_backend.import_hook import ImportHook


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hooked_module.py").write_text("value = 1\n")
    yield "hooked_module"
    sys.modules.pop("hooked_module", None)


def test_calls_back_after_the_body_and_before_the_importer_goes_on(module):
    seen = []
    hook = ImportHook(lambda name: seen.append((name, sys.modules[name].value)))
    hook.watch([module])
    try:
        importlib.import_module(module)
    finally:
        hook.watch([])
    assert seen == [(module, 1)] and hook not in sys.meta_path


def test_two_hooks_share_a_module(module):
    seen = []
    hooks = [ImportHook(lambda name, k=k: seen.append(k)) for k in range(2)]
    for hook in hooks:
        hook.watch([module])
    try:
        spec = importlib.import_module(module).__spec__
    finally:
        for hook in hooks:
            hook.watch([])
    assert sorted(seen) == [0, 1]
    assert spec.loader is sys.modules[module].__loader__
    assert type(spec.loader).__name__ == "SourceFileLoader"


def test_failing_import_is_not_reported(module, tmp_path):
    (tmp_path / "hooked_module.py").write_text("raise RuntimeError('body')\n")
    seen = []
    hook = ImportHook(seen.append)
    hook.watch([module])
    try:
        with pytest.raises(RuntimeError, match="body"):
            importlib.import_module(module)
        with pytest.raises(ModuleNotFoundError):
            hook.watch([module, "no_such_module"])
            importlib.import_module("no_such_module")
    finally:
        hook.watch([])
    assert seen == []


def test_unwatched_modules_keep_their_loader(module):
    hook = ImportHook(lambda name: None)
    hook.watch(["another"])
    try:
        assert isinstance(importlib.import_module(module), types.ModuleType)
        assert hook.find_spec(module, None) is None
    finally:
        hook.watch([])

"""Import order, exact undo, selection and overlapping scopes."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import sys
import threading

import pytest
import torch

import gnn_backend
from gnn_backend.errors import InvalidArgument
from gnn_backend.patching import Patch, registry, stock


def launches(call) -> int:
    with gnn_backend.profile() as p:
        call()
    return sum(p.launches.values())


def is_fast(layer) -> bool:
    return launches(lambda: layer(torch.ones(2, 3))) == 1


def raw_objects(host) -> dict[str, object]:
    """What the host's namespaces hold, without the descriptor protocol."""
    base, conv = host.conv.Base, host.conv.Conv
    return {
        "Base.__dict__": dict(vars(base)),
        "Conv.__dict__": dict(vars(conv)),
        "conv.double": host.conv.double,
        "package.double": host.load().double,
    }


def test_import_alone_patches_nothing(fake):
    before = fake.load().Conv.forward
    importlib.import_module("gnn_backend")
    assert fake.load().Conv.forward is before
    assert not gnn_backend.is_enabled()
    assert not is_fast(fake.load().Conv())


def test_enable_after_import(fake):
    layer = fake.load().Conv()
    assert not is_fast(layer)
    gnn_backend.enable()
    assert is_fast(layer), "a model built before enable() is accelerated"
    assert is_fast(fake.load().Conv())


def test_enable_before_import(fake):
    gnn_backend.enable()
    assert fake.name not in sys.modules, "enable() does not import hosts"
    assert is_fast(fake.load().Conv())


def test_replacements_are_ready_when_the_hosts_import_ends(fake):
    """A first call that torch.compile traces cannot import what they name."""
    gnn_backend.enable()
    fake.load()
    ready = [p.replacement._resolved for p in registry.known() if hasattr(p.replacement, "resolve")]
    assert ready and all(ready)


def test_enable_between_package_and_submodule(fake, tmp_path):
    (tmp_path / fake.name / "__init__.py").write_text("")
    fake.load()
    gnn_backend.enable()
    assert is_fast(fake.conv.Conv())


def test_enable_inside_the_hosts_own_import(fake, tmp_path):
    init = tmp_path / fake.name / "__init__.py"
    init.write_text(f"import gnn_backend\ngnn_backend.enable()\n{init.read_text()}")
    assert is_fast(fake.load().Conv())


def test_import_leaves_no_trace_of_the_hook(fake):
    with gnn_backend.enabled():
        module = fake.conv
    assert type(module.__loader__).__module__.startswith(("_frozen_importlib", "importlib"))
    assert module.__spec__.loader is module.__loader__
    assert inspect.getsource(module).strip().startswith("import torch")
    assert not any(type(f).__module__ == "gnn_backend.import_hook" for f in sys.meta_path)


def test_reloaded_host_is_patched_again_and_undone(fake):
    first = fake.conv
    old = first.Conv
    with gnn_backend.enabled():
        importlib.reload(first)
        assert first.Conv is not old
        assert is_fast(first.Conv())
        assert is_fast(old())
    assert not is_fast(first.Conv())
    assert not is_fast(old())


@pytest.mark.parametrize("early", [True, False])
def test_disable_restores_the_very_same_objects(fake, early):
    if early:
        gnn_backend.enable()
        fake.load()
        gnn_backend.disable()
    before = raw_objects(fake)
    assert "forward" not in vars(fake.conv.Conv), "forward is inherited in the host"
    for _ in range(2):
        gnn_backend.enable()
        gnn_backend.enable()
        assert "forward" in vars(fake.conv.Conv)
        assert isinstance(vars(fake.conv.Base)["fixed"], staticmethod)
        assert isinstance(vars(fake.conv.Base)["named"], classmethod)
        assert (fake.conv.Base.fixed(1), fake.conv.Conv.named()) == (12, "Conv!")
        gnn_backend.disable()
        gnn_backend.disable()
        after = raw_objects(fake)
        for key in ("Base.__dict__", "Conv.__dict__"):
            assert before[key].keys() == after[key].keys()
            assert all(before[key][n] is after[key][n] for n in before[key])
        assert all(before[k] is after[k] for k in ("conv.double", "package.double"))
    assert not inspect.isfunction(vars(fake.conv.Base)["fixed"])


def test_reexported_functions_are_replaced_everywhere(fake):
    gnn_backend.enable()
    user = type(sys)("user_module")
    sys.modules["user_module"] = user
    try:
        user.twice = fake.load().double  # as `from host import double as twice` would
        with gnn_backend.profile() as p:
            user.twice(1), fake.conv.double(1), fake.load().double(1)
        assert p.by_symbol[f"{fake.name}.double"].accelerated == 3
        gnn_backend.disable()
        assert user.twice is fake.conv.double
        assert stock(user.twice) is user.twice
        gnn_backend.enable()
        assert user.twice is fake.conv.double
        assert stock(user.twice) is not user.twice
    finally:
        del sys.modules["user_module"]


@pytest.mark.parametrize("early", [True, False])
def test_places_listed_beside_the_patch(fake, tmp_path, monkeypatch, early):
    """A class that stores the function is no module global, so it is listed in ``also``."""
    (tmp_path / fake.name / "uses.py").write_text(
        f"from {fake.name}.conv import double\nclass Table:\n    ops = staticmethod(double)\n"
        "    raw = double\n"
    )
    patches = importlib.import_module(f"{fake.name}_patches").PATCHES
    also = (f"{fake.name}.uses:Table.ops", f"{fake.name}.uses:Table.raw")
    patches[:] = [dataclasses.replace(patches[1], also=also)]
    if early:
        importlib.import_module(f"{fake.name}.uses")
    gnn_backend.enable()
    uses = importlib.import_module(f"{fake.name}.uses")
    with gnn_backend.profile() as p:
        assert uses.Table.ops(1) == uses.Table.raw(1) == uses.double(1) == 2
    assert p.accelerated == 3
    gnn_backend.disable()
    assert vars(uses.Table)["raw"] is uses.double is fake.conv.double
    assert vars(uses.Table)["ops"].__func__ is uses.double
    assert stock(uses.double) is uses.double


def test_replacement_kept_by_the_user_runs_stock_after_disable(fake):
    gnn_backend.enable()
    kept = fake.load().Conv.forward
    gnn_backend.disable()
    layer = fake.conv.Conv()
    assert launches(lambda: kept(layer, torch.ones(2, 3))) == 0


def test_code_that_patched_after_us_is_left_alone(fake, caplog):
    host = fake.load()
    gnn_backend.enable()
    ours = host.Conv.forward
    host.Conv.forward = theirs = lambda self, x: ours(self, x) + 1
    layer = host.Conv()
    assert is_fast(layer)
    gnn_backend.disable()
    assert host.Conv.forward is theirs
    assert "replaced again" in caplog.text
    assert launches(lambda: layer(torch.ones(2, 3))) == 0


def test_class_pickle_and_names_are_unchanged(fake):
    host = fake.load()
    layer = host.Conv()
    before = pickle.dumps(layer)
    gnn_backend.enable()
    assert pickle.dumps(layer) == before
    assert isinstance(pickle.loads(before), host.Conv)
    assert host.Conv.__name__ == "Conv"
    assert inspect.signature(host.Conv.forward) == inspect.signature(host.Base.forward)


def test_subclass_of_a_layer_is_accelerated(fake):
    class Mine(fake.load().Conv):
        def forward(self, x):
            return super().forward(x).relu()

    gnn_backend.enable()
    assert is_fast(Mine())


@pytest.mark.parametrize(
    ("arguments", "fast", "doubles"),
    [
        ({}, True, True),
        ({"include": ["Conv"]}, True, False),
        ({"include": "Conv"}, True, False),
        ({"include": "HOST.Conv"}, True, False),
        ({"exclude": ["Conv"]}, False, True),
        ({"include": ["Conv", "double"], "exclude": ["HOST.double"]}, True, False),
        ({"hosts": "HOST"}, True, True),
        ({"hosts": []}, False, False),
    ],
)
def test_selection(fake, arguments, fast, doubles):
    def named(value):
        return value.replace("HOST", fake.name) if isinstance(value, str) else value

    gnn_backend.enable(
        **{
            k: [named(v) for v in value] if isinstance(value, list) else named(value)
            for k, value in arguments.items()
        }
    )
    assert is_fast(fake.load().Conv()) == fast
    with gnn_backend.profile() as p:
        fake.conv.double(1)
    assert (p.accelerated == 1) == doubles


@pytest.mark.parametrize(
    ("arguments", "applied"),
    [
        ({}, True),
        ({"include": "Conv"}, True),
        ({"include": "double"}, True),
        ({"include": "double", "exclude": "fixed"}, False),
        ({"exclude": "fixed"}, False),
        ({"hosts": []}, False),
    ],
)
def test_a_shared_patch_comes_with_any_layer(fake, arguments, applied):
    known = registry.known()
    place = next(k for k, patch in enumerate(known) if patch.layer == "fixed")
    registry._patches[fake.name][place] = dataclasses.replace(known[place], shared=True)
    with gnn_backend.enabled(**arguments):
        assert fake.load().Base.fixed(1) == (12 if applied else 2)
    assert fake.load().Base.fixed(1) == 2


def test_second_enable_replaces_the_first(fake):
    gnn_backend.enable(include="Conv")
    gnn_backend.enable(exclude="Conv")
    assert not is_fast(fake.load().Conv())
    gnn_backend.enable()
    assert is_fast(fake.load().Conv())


def test_unknown_names_are_errors_that_list_the_known(fake):
    with pytest.raises(InvalidArgument, match=rf"'Cnov'.*{fake.name}\.Conv.*mean 'Conv'"):
        gnn_backend.enable(include=["Cnov"])
    with pytest.raises(InvalidArgument, match=f"unknown host.*'jraph'.*{fake.name}"):
        gnn_backend.enable(hosts=["jraph"])
    with pytest.raises(InvalidArgument, match=r"'fast'.*auto, strict, verify"):
        gnn_backend.enable(mode="fast")
    assert not gnn_backend.is_enabled()


@pytest.mark.parametrize("argument", ["hosts", "include", "exclude"])
@pytest.mark.parametrize("value", [3, [3], ["Conv", None]])
def test_what_is_no_name_is_an_error(fake, argument, value):
    with pytest.raises(InvalidArgument, match=f"{argument}: no names"):
        gnn_backend.enable(**{argument: value})
    assert not gnn_backend.is_enabled()


def test_names_may_come_from_any_iterable(fake):
    with gnn_backend.enabled(include={"Conv": 1}.keys(), exclude=("double",)):
        assert is_fast(fake.load().Conv())


def test_absent_host_is_no_error(fake, tmp_path):
    (tmp_path / fake.name / "__init__.py").unlink()
    (tmp_path / fake.name / "conv.py").unlink()
    (tmp_path / fake.name).rmdir()
    importlib.invalidate_caches()
    gnn_backend.enable()
    assert {p.note for p in gnn_backend.patches()} == {"not installed"}


def test_seam_missing_in_this_host_version_warns(fake, monkeypatch):
    fake.load()
    odd = Patch(fake.name, f"{fake.name}.conv", "Gone.forward", "Gone", lambda f: f)
    monkeypatch.setattr(registry, "_patches", {fake.name: [odd]})
    with pytest.warns(UserWarning, match=r"Gone is not accelerated.*has no Gone\.forward"):
        gnn_backend.enable()
    (info,) = gnn_backend.patches()
    assert not info.active and "has no Gone.forward" in info.note


def test_patches_tell_what_is_replaced(fake):
    notes = {p.symbol: p.note for p in gnn_backend.patches()}
    assert set(notes.values()) == {"disabled"}
    gnn_backend.enable(exclude="double")
    assert {p.note for p in gnn_backend.patches()} == {"not imported yet", "excluded"}
    fake.load()
    rows = {p.symbol: p for p in gnn_backend.patches()}
    conv = rows[f"{fake.name}.Conv"]
    assert conv.active and conv.host == fake.name
    assert conv.replaced_by == f"{fake.name}_patches.fast"
    assert conv.target == f"{fake.name}.conv.Conv.forward"
    assert not rows[f"{fake.name}.double"].active


def test_scopes_restore_the_previous_state(fake):
    layer = fake.load().Conv()
    with gnn_backend.enabled():
        assert is_fast(layer)
        with gnn_backend.disabled():
            assert not is_fast(layer)
            with gnn_backend.enabled(exclude="Conv"):
                assert not is_fast(layer)
        assert is_fast(layer)
    assert not gnn_backend.is_enabled()
    gnn_backend.enable(mode="strict")
    with pytest.raises(KeyError), gnn_backend.disabled():
        raise KeyError
    assert registry.state.mode == "strict"


def test_switches_inside_a_scope_end_with_it(fake):
    with gnn_backend.enabled():
        gnn_backend.disable()
        assert not gnn_backend.is_enabled()
    assert not gnn_backend.is_enabled()
    with gnn_backend.disabled():
        gnn_backend.enable()
        assert gnn_backend.is_enabled()
    assert not gnn_backend.is_enabled()


def test_overlapping_scopes_of_two_threads(fake):
    """A enters, B enters, A leaves, B leaves: B's state holds between, the first one after."""
    layer = fake.load().Conv()
    entered, leave = threading.Event(), threading.Event()

    def other():
        with gnn_backend.enabled():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with gnn_backend.enabled(mode="strict"):
        thread.start()
        assert entered.wait(10)
        assert registry.state.mode == "auto", "the state is the process's"
    assert is_fast(layer), "the other thread is still inside its block"
    leave.set()
    thread.join()
    assert not gnn_backend.is_enabled()
    assert not is_fast(layer)


def test_many_threads_leave_the_host_as_it_was(fake):
    before = raw_objects(fake)

    def work():
        for k in range(30):
            with gnn_backend.enabled() if k % 2 else gnn_backend.disabled():
                fake.conv.Conv()(torch.ones(2, 3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not gnn_backend.is_enabled()
    after = raw_objects(fake)
    assert before["Conv.__dict__"].keys() == after["Conv.__dict__"].keys()
    assert before["conv.double"] is after["conv.double"]


def test_enable_while_another_thread_imports(fake, tmp_path):
    init = tmp_path / fake.name / "conv.py"
    started, go = threading.Event(), threading.Event()
    sys.modules["importing_events"] = type(sys)("importing_events")
    sys.modules["importing_events"].__dict__.update(started=started, go=go)
    init.write_text(
        "from importing_events import started, go\nstarted.set()\ngo.wait(10)\n" + init.read_text()
    )
    importer = threading.Thread(target=fake.load)
    importer.start()
    assert started.wait(10)
    enabler = threading.Thread(target=gnn_backend.enable)
    enabler.start()
    go.set()
    importer.join(10)
    enabler.join(10)
    del sys.modules["importing_events"]
    assert not importer.is_alive() and not enabler.is_alive()
    assert is_fast(fake.conv.Conv())


def add_patch(fake, patch):
    """Give the invented host one more patch."""
    patches = importlib.import_module(f"{fake.name}_patches")
    patches.PATCHES.append(patch)


def test_a_condition_keeps_a_place_as_it_is(fake):
    reason = ["this release is odd"]
    add_patch(fake, Patch(fake.name, f"{fake.name}.conv", "Plain.forward", "Plain",
                          lambda f: lambda self, x: -x, when=lambda: reason[0]))  # fmt: skip
    layer = fake.load().Plain()
    gnn_backend.enable()
    assert layer(torch.ones(1)) == 1
    row = next(r for r in gnn_backend.patches() if r.symbol.endswith(".Plain"))
    assert (row.active, row.note) == (False, "this release is odd")
    reason[0] = ""
    gnn_backend.enable()
    assert layer(torch.ones(1)) == -1
    gnn_backend.disable()
    assert layer(torch.ones(1)) == 1


def test_shared_patches_come_with_any_layer(fake):
    add_patch(fake, Patch(fake.name, f"{fake.name}.conv", "Plain.forward", "common",
                          lambda f: lambda self, x: -x, shared=True))  # fmt: skip
    layer = fake.load().Plain()
    for chosen, applied in (
        ({"include": "Conv"}, True),
        ({"include": "common"}, True),
        ({"include": "Conv", "exclude": "common"}, False),
        ({"hosts": []}, False),
    ):
        with gnn_backend.enabled(**chosen):
            assert (layer(torch.ones(1)) == -1) == applied

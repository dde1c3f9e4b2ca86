"""accelerate() and explain(), and the package's public names."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import gnn_backend
from gnn_backend import config
from gnn_backend.errors import (
    InvalidArgument,
    StrictFallbackError,
    Unsupported,
    VerificationError,
)

X = torch.ones(2, 3)


def launches(call) -> int:
    with gnn_backend.profile() as p:
        call()
    return sum(p.launches.values())


def model(fake) -> nn.Module:
    host = fake.load()
    return nn.Sequential(host.Conv(), nn.ReLU(), host.Plain(), host.Conv())


def test_public_names_exist():
    for name in gnn_backend.__all__:
        assert callable(getattr(gnn_backend, name))


def test_import_without_hosts_touches_neither():
    script = (
        "import sys, gnn_backend; gnn_backend.enable(); gnn_backend.disable(); "
        "print([m for m in ('dgl', 'torch_geometric', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_accelerate_one_model_only(fake):
    mine, other = model(fake), model(fake)
    before = dict(vars(fake.conv.Conv))
    assert gnn_backend.accelerate(mine) is mine
    assert launches(lambda: mine(X)) == 2 and launches(lambda: other(X)) == 0
    assert dict(vars(fake.conv.Conv)) == before and not gnn_backend.is_enabled()
    gnn_backend.accelerate(mine, undo=True)
    assert type(mine[0]) is fake.conv.Conv and launches(lambda: mine(X)) == 0


def test_accelerated_model_keeps_its_identity(fake):
    mine = model(fake)
    state, modules = copy.deepcopy(mine.state_dict()), list(mine.named_modules())
    gnn_backend.accelerate(mine)
    assert [n for n, _ in mine.named_modules()] == [n for n, _ in modules]
    assert all(a is b for (_, a), (_, b) in zip(mine.named_modules(), modules, strict=True))
    assert isinstance(mine[0], fake.conv.Conv) and type(mine[0]).__name__ == "Conv"
    assert mine.state_dict().keys() == state.keys()
    mine.load_state_dict(state)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_stay_accelerated_and_independent(fake, copied):
    layer = gnn_backend.accelerate(fake.load().Conv().eval())
    twin = copied(layer)
    assert launches(lambda: twin(X)) == 1
    assert torch.equal(twin(X), layer(X))
    twin.lin = nn.Linear(3, 3)
    assert not torch.equal(twin(X), layer(X)), "the copy uses its own parameters"
    gnn_backend.accelerate(twin, undo=True)
    assert launches(lambda: twin(X)) == 0 and launches(lambda: layer(X)) == 1


def test_replicas_use_their_own_parameters(fake):
    """nn.DataParallel copies the attributes of a module, and then replaces the parameters."""
    layer = gnn_backend.accelerate(fake.load().Conv().eval())
    replica = layer._replicate_for_data_parallel()
    replica.lin = nn.Linear(3, 3)
    nn.init.zeros_(replica.lin.weight), nn.init.zeros_(replica.lin.bias)
    assert launches(lambda: replica(X)) == 1 and not replica(X).any()


def test_undone_model_pickles_as_stock(fake):
    layer = fake.load().Conv()
    before = pickle.dumps(layer)
    assert b"gnn_backend" in pickle.dumps(gnn_backend.accelerate(layer))
    assert pickle.dumps(gnn_backend.accelerate(layer, undo=True)) == before


def test_accelerate_is_idempotent_and_changes_mode(fake):
    layer = fake.load().Conv()
    for mode in ("auto", "strict", "strict"):
        gnn_backend.accelerate(layer, mode=mode)
    assert type(layer).__mro__[1] is fake.conv.Conv
    with pytest.raises(StrictFallbackError):
        layer.double()(X.double())
    with pytest.raises(InvalidArgument, match="'fast'"):
        gnn_backend.accelerate(layer, mode="fast")
    with pytest.raises(InvalidArgument, match="function"):
        gnn_backend.accelerate(lambda x: x)


def test_accelerated_model_and_the_global_switch(fake):
    layer = gnn_backend.accelerate(fake.load().Conv())
    with gnn_backend.enabled(), gnn_backend.profile() as p:
        layer(X), layer.double()(X.double())
    assert p.calls == 2, "a fallback does not pass through the other replacement as well"
    layer.float()
    gnn_backend.disable()
    assert launches(lambda: layer(X)) == 1


def test_accelerated_model_inside_disabled(fake):
    layer = gnn_backend.accelerate(fake.load().Conv().eval())
    with gnn_backend.disabled(), gnn_backend.profile() as p:
        layer(X)
        assert p.calls == 0 and not p.launches
        with gnn_backend.enabled(hosts=[]):  # the innermost block holds
            assert launches(lambda: layer(X)) == 1
        assert launches(lambda: layer(X)) == 0
        gnn_backend.enable()  # inside a block it is the block's switch
        assert launches(lambda: layer(X)) == 1
        gnn_backend.disable()
        assert launches(lambda: layer(X)) == 0
    assert launches(lambda: layer(X)) == 1
    with gnn_backend.disabled():
        assert gnn_backend.explain(layer, X).accelerated
        assert gnn_backend.compare(layer, X, repeats=1).accelerated


@pytest.mark.parametrize("switch", [gnn_backend.enabled, gnn_backend.enable])
def test_accelerated_model_inside_another_mode(fake, switch):
    own = {mode: gnn_backend.accelerate(fake.load().Conv(), mode=mode).double()
           for mode in ("auto", "strict", "verify")}  # fmt: skip
    with contextlib.ExitStack() as stack:
        if (block := switch(mode="strict")) is not None:
            stack.enter_context(block)
        for layer in own.values():
            with pytest.raises(StrictFallbackError):
                layer(X.double())
        own["auto"].float()(X)
    gnn_backend.disable()
    own["verify"](X.double())
    with gnn_backend.enabled(mode="auto"), pytest.raises(StrictFallbackError):
        own["strict"](X.double())
    with gnn_backend.enabled(mode="strict", exclude="Conv"):
        own["verify"](X.double())


def test_an_enclosing_verify_checks_accelerated_models(fake):
    layer = gnn_backend.accelerate(fake.load().Conv())
    fake.how["fast"] = "wrong output"
    layer(X)
    with gnn_backend.enabled(mode="verify"), pytest.raises(VerificationError):
        layer(X)
    with config.override(mode="verify"), pytest.raises(VerificationError):
        layer(X)


def test_compiled_accelerated_model_follows_the_blocks(fake):
    layer = gnn_backend.accelerate(fake.load().Conv().eval())
    fake.how["fast"] = "wrong output"
    stock = layer.lin(X)
    compiled = torch.compile(layer, backend="eager")
    for _ in range(2):
        assert not torch.allclose(compiled(X), stock)
        with gnn_backend.disabled():
            assert torch.allclose(compiled(X), stock)


def test_accelerate_while_enabled_and_undo_after(fake):
    with gnn_backend.enabled():
        layer = gnn_backend.accelerate(fake.load().Conv())
    assert launches(lambda: layer(X)) == 1
    gnn_backend.accelerate(layer, undo=True)
    assert launches(lambda: layer(X)) == 0


def test_layers_with_a_forward_of_their_own_are_left(fake):
    class Mine(fake.load().Conv):
        def forward(self, x):
            return super().forward(x) * 0

    with pytest.warns(UserWarning, match=f"no layer of Mine.*{fake.name}.Conv"):
        mine = gnn_backend.accelerate(Mine())
    assert type(mine) is Mine
    (report,) = gnn_backend.explain(mine).layers
    assert report.reason == "overridden-forward"
    patched = fake.conv.Conv()
    patched.forward = lambda x: x
    with pytest.warns(UserWarning):
        gnn_backend.accelerate(patched)


def test_explain_without_a_call(fake):
    mine = model(fake)
    mine[3].edges = True
    told = gnn_backend.explain(mine)
    symbol = f"{fake.name}.Conv"
    assert [(r.name, r.symbol, r.accelerated, r.reason) for r in told.layers] == [
        ("0", symbol, True, None),
        ("2", f"{fake.name}.Plain", False, "no-kernel"),
        ("3", symbol, False, "edge-features"),
    ]
    assert not told.accelerated and not told.sampled
    assert "Edge features" in told.layers[2].explanation and "edge-features" in str(told)


def test_explain_with_a_sample_call_changes_nothing(fake):
    mine = model(fake).double()
    buffers = copy.deepcopy(dict(mine.named_buffers()))
    torch.manual_seed(2)
    expected = torch.rand(2)
    torch.manual_seed(2)
    told = gnn_backend.explain(mine, X.double())
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(b, buffers[n]) for n, b in mine.named_buffers())
    assert not gnn_backend.is_enabled()
    assert [(r.reason, r.calls) for r in told.layers] == [
        ("dtype-float64", 1),
        ("no-kernel", 0),
        ("dtype-float64", 1),
    ]
    assert gnn_backend.explain(mine[0].float(), X).accelerated
    json.dumps(told.to_dict())


def test_explain_names_uncalled_layers_and_functions(fake):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = fake.load().Conv(), fake.load().Conv()

        def forward(self, x):
            return fake.conv.double(self.used(x))

    told = gnn_backend.explain(Odd(), X)
    assert [(r.name, r.accelerated, r.reason) for r in told.layers] == [
        ("used", True, None),
        ("unused", False, "not-called"),
        ("(function)", True, None),
    ]
    with pytest.raises(InvalidArgument, match="module"):
        gnn_backend.explain(lambda x: x)


def test_explain_restores_the_random_state_after_an_error(fake):
    layer = fake.load().Conv()
    state = torch.get_rng_state()
    with pytest.raises(TypeError, match="stock: wrong width"):
        gnn_backend.explain(nn.Sequential(nn.Dropout(), layer), torch.ones(2, 5))
    assert torch.equal(torch.get_rng_state(), state)


def test_warmup_compiles_so_that_no_call_waits():
    with gnn_backend.profile() as p:
        gnn_backend.warmup(dims=[4], heads=(1, 2), device="cpu")
    assert sum(p.launches.values()) >= 2 * 2, "forward and backward of each"
    for dims in (0, "64", 4.5):
        with pytest.raises(InvalidArgument, match="not positive integers"):
            gnn_backend.warmup(dims=dims, device="cpu")
    for dtypes in (torch.int64, "float32", None):
        with pytest.raises(InvalidArgument, match="not floating-point"):
            gnn_backend.warmup(dtypes=dtypes, device="cpu")
    with pytest.raises(InvalidArgument, match="got meta, expected cpu or cuda"):
        gnn_backend.warmup(device="meta")
    with config.override(cpu_target="emulator"), pytest.raises(Unsupported, match="dtype-float64"):
        gnn_backend.warmup(dtypes=[torch.float64], device="cpu")


PUBLIC_NAMES = """
import sys
import gnn_backend
assert "torch" not in sys.modules
from gnn_backend.profile import Profile  # binds the submodule's name in the package
import gnn_backend.compare
assert isinstance(gnn_backend.profile(), Profile)
from gnn_backend import *
assert profile is gnn_backend.profile and compare is gnn_backend.compare
for name in gnn_backend.__all__:
    value = getattr(gnn_backend, name)
    assert value is getattr(gnn_backend.api, name) is globals()[name] and callable(value), name
    assert name in dir(gnn_backend)
assert issubclass(gnn_backend.errors.Unsupported, Exception)
assert not hasattr(gnn_backend, "nothing_like_this")
"""


def test_public_names_come_on_first_use_and_no_submodule_hides_one():
    done = subprocess.run(
        [sys.executable, "-c", PUBLIC_NAMES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_autotune_is_a_setting_of_enable():
    with config.override(autotune=False):
        gnn_backend.enable()
        assert not config.get_config().autotune
        gnn_backend.enable(autotune=True)
        assert config.get_config().autotune
        gnn_backend.enable()
        assert config.get_config().autotune
        with pytest.raises(InvalidArgument, match="autotune: not a flag; got 1"):
            gnn_backend.enable(autotune=1)
        gnn_backend.enable(autotune=False)
        assert not config.get_config().autotune
        gnn_backend.disable()


def test_explain_says_what_attention_runs_with():
    conv = pytest.importorskip("torch_geometric.nn").TransformerConv(4, 4)
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    said = gnn_backend.explain(conv, torch.ones(3, 4), edges)
    assert [text.split(",")[0] for text in said.choices] == ["dot: Numba"]
    assert "dot: Numba" in str(said) and said.to_dict()["choices"] == said.choices
    assert gnn_backend.explain(conv).choices == []

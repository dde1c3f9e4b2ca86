"""The decision between fused and stock code, in each mode, and what is recorded."""

from __future__ import annotations

import os
import signal
import threading
import warnings

import pytest
import torch

import gnn_backend
from gnn_backend.dispatch import bypass, dispatch, lenient, observing
from gnn_backend.errors import (
    InvalidArgument,
    KernelCompileError,
    StrictFallbackError,
    Unsupported,
)

X = torch.ones(2, 3)


def test_accelerated_call_is_counted(fake):
    layer = fake.load().Conv()
    with gnn_backend.enabled(), gnn_backend.profile() as p:
        layer(X), layer(X)
    assert (p.calls, p.accelerated, p.fallbacks, sum(p.launches.values())) == (2, 2, 0, 2)
    assert layer.calls == 0, "the stock forward did not run"


def test_ineligible_call_falls_back_with_its_reason(fake):
    layer = fake.load().Conv().double()
    with gnn_backend.enabled(), gnn_backend.profile() as p:
        layer(X.double())
    assert (p.accelerated, p.fallbacks, dict(p.reasons)) == (0, 1, {"dtype-float64": 1})
    assert layer.calls == 1 and not p.launches


def test_fast_path_may_decline(fake):
    layer = fake.load().Conv()
    fake.how["fast"] = "unsupported"
    with gnn_backend.enabled(), gnn_backend.profile() as p:
        layer(X)
    assert dict(p.reasons) == {"head-dim": 1} and layer.calls == 1


def test_strict_names_layer_reason_and_remedy(fake):
    layer = fake.load().Conv().double()
    with (
        gnn_backend.enabled(mode="strict"),
        pytest.raises(StrictFallbackError, match=rf"{fake.name}\.Conv.*'dtype-float64'.*float32"),
    ):
        layer(X.double())
    assert layer.calls == 0
    with gnn_backend.enabled(mode="strict"):
        layer.float()(X)


def test_bad_input_gives_the_stock_error(fake):
    layer = fake.load().Conv()
    for mode in ("auto", "strict", "verify"):
        with gnn_backend.enabled(mode=mode), pytest.raises(TypeError, match="stock: wrong width"):
            layer(torch.ones(2, 5))


def test_our_error_where_stock_has_none(fake):
    layer = fake.load().Conv()
    fake.how["fast"] = "picky"
    with gnn_backend.enabled(), pytest.raises(InvalidArgument, match="ours"):
        layer(X)


def test_defects_are_not_swallowed(fake):
    layer = fake.load().Conv()
    fake.how["fast"] = "broken"
    for mode in ("auto", "strict", "verify"):
        with gnn_backend.enabled(mode=mode), pytest.raises(ZeroDivisionError):
            layer(X)


def test_kernel_that_does_not_compile(fake):
    layer = fake.load().Conv()
    fake.how["fast"] = "uncompilable"
    with (
        gnn_backend.enabled(),
        gnn_backend.profile() as p,
        pytest.warns(RuntimeWarning, match="line 1: error") as caught,
    ):
        layer(X), layer(X)
    assert dict(p.reasons) == {"compile-failed": 2} and len(caught) == 1
    for mode in ("strict", "verify"):
        with gnn_backend.enabled(mode=mode), pytest.raises(KernelCompileError):
            layer(X)


def test_decision_is_made_once_a_signature():
    asked = []

    def eligible(x):
        asked.append(x)
        return "too-small" if x < 3 else None

    f = dispatch("a.f", abs, eligible, abs, mode="auto", signature=lambda x: x)
    with gnn_backend.profile() as p:
        for x in (1, 5, 1, 5, 1):
            assert f(x) == x
    assert asked == [1, 5]
    assert (p.accelerated, dict(p.reasons)) == (2, {"too-small": 3})


def test_declined_signature_is_not_tried_again():
    tried = []

    def fast(x):
        tried.append(x)
        raise Unsupported("head-dim")

    f = dispatch("a.f", abs, lambda x: None, fast, mode="auto", signature=lambda x: "any")
    assert [f(-1), f(-2)] == [1, 2] and tried == [-1]


def test_bypass_holds_for_this_thread_only():
    f = dispatch("a.f", lambda: "stock", lambda: None, lambda: "fast", mode="auto")
    seen = []
    with bypass():
        assert f() == "stock"
        thread = threading.Thread(target=lambda: seen.append(f()))
        thread.start()
        thread.join()
    assert seen == ["fast"] and f() == "fast"


def test_lenient_takes_every_mode_for_auto(fake):
    layer = fake.load().Conv().double()
    with gnn_backend.enabled(mode="strict"):
        with lenient():
            layer(X.double())
        with pytest.raises(StrictFallbackError):
            layer(X.double())


Pair = tuple[torch.Tensor, torch.Tensor]


def swapped(x: Pair) -> Pair:
    return x[1], x[0]


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_torchscript_compiles_the_stock_code():
    f = dispatch("a.f", swapped, lambda x: None, swapped, mode="auto")
    scripted = torch.jit.script(f)
    assert torch.equal(scripted((X, X + 1))[0], X + 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_child_of_a_fork_counts_and_switches(fake):
    """Locks held by other threads at the moment of the fork do not stay taken in the child."""
    layer = fake.load().Conv()
    gnn_backend.patches()  # the import system's own locks do not survive a fork
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            with gnn_backend.enabled(include="double"):
                fake.conv.double(1)

    def child() -> int:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        with gnn_backend.enabled(), gnn_backend.profile() as p:
            layer(X)
        return 0 if p.accelerated == 1 else 1

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(20):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                status = 2
                try:
                    status = child()
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_observers_see_each_decision(fake):
    layer, seen = fake.load().Conv(), []
    with gnn_backend.enabled(), observing(lambda *d: seen.append(d)):
        layer(X), layer.double()(X.double())
    layer.float()(X)
    symbol = f"{fake.name}.Conv"
    assert seen == [(symbol, layer, True, None), (symbol, layer, False, "dtype-float64")]


def test_disabled_dispatch_records_nothing(fake):
    layer = fake.load().Conv()
    with gnn_backend.profile() as p, gnn_backend.enabled(), gnn_backend.disabled():
        layer(X)
    assert p.calls == 0


def test_compiled_layer_is_fused_without_graph_breaks(fake):
    layer = fake.load().Conv().eval()
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with gnn_backend.enabled():
        expected = layer(X)
        assert torch.equal(compiled(X), expected)
        assert layer.calls == 0, "the stock forward was not traced"
        layer.double()
        compiled(X.double())
        assert layer.calls == 1, "an ineligible call traces the stock forward"
    layer.float()
    assert torch.equal(compiled(X), expected)
    assert layer.calls == 2, "compiled code sees disable()"


def test_compiled_layer_declines_and_refuses_as_in_eager(fake):
    layer = fake.load().Conv().eval()
    fake.how["fast"] = "unsupported"
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="eager")
    with gnn_backend.enabled():
        compiled(X)
    assert layer.calls == 1
    with (
        gnn_backend.enabled(mode="strict"),
        pytest.raises(StrictFallbackError, match="head-dim"),
    ):
        compiled(X)


def test_accelerated_instance_compiles(fake):
    layer = gnn_backend.accelerate(fake.load().Conv().eval())
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), layer(X)) and layer.calls == 0

"""Counting calls, launches, times and bytes."""

from __future__ import annotations

import json
import threading

import torch

import gnn_backend
from gnn_backend.profile import count_launch, record_call

X = torch.ones(2, 3)


def test_block_counts_only_what_happens_inside(fake):
    layer = fake.load().Conv()
    with gnn_backend.enabled():
        layer(X)
        with gnn_backend.profile() as p:
            layer(X)
            layer.double()(X.double())
            assert p.calls == 2, "it can be read while it runs"
        layer.float()(X)
    symbol = f"{fake.name}.Conv"
    assert (p.calls, p.accelerated, p.fallbacks) == (2, 1, 1)
    assert p.reasons == {"dtype-float64": 1}
    assert p.launches == {("numba", "fake_conv"): 1}
    assert p.by_symbol[symbol].memory_saved == p.memory_saved == 4 * X.numel()
    assert p.time["accelerated"] > 0 and p.time["stock"] > 0


def test_totals_of_the_process():
    before = gnn_backend.profile().calls
    record_call("a.b", False, "flow", 0.5)
    count_launch("cuda", "k")
    totals = gnn_backend.profile()
    assert totals.calls == before + 1
    assert totals.by_symbol["a.b"].reasons["flow"] >= 1
    assert totals.launches["cuda", "k"] >= 1


def test_shown_in_one_line():
    with gnn_backend.profile() as p:
        assert repr(p) == "<Profile: 0 accelerated, 0 stock, 0 launches>"
        record_call("a.b", True, None, 0.0)
        count_launch("cuda", "k")
        for reason in ("flow", "hooks", "flow"):
            record_call("a.b", False, reason, 0.0)
    assert repr(p) == "<Profile: 1 accelerated, 3 stock (flow x2, hooks x1), 1 launches>"


def test_blocks_nest():
    with gnn_backend.profile() as outer:
        record_call("a.b", True, None, 0.0)
        with gnn_backend.profile() as inner:
            record_call("a.b", True, None, 0.0)
    assert (outer.calls, inner.calls) == (2, 1)


def test_threads_do_not_lose_counts():
    def work():
        for _ in range(500):
            record_call("a.b", True, None, 0.0)
            count_launch("numba", "k")

    with gnn_backend.profile() as p:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert p.calls == p.launches["numba", "k"] == 2000


def test_reports():
    with gnn_backend.profile(synchronize=True) as p:
        record_call("pyg.GATv2Conv", True, None, 0.25, saved=3 << 20)
        record_call("pyg.GATv2Conv", False, "flow", 0.5)
        count_launch("numba", "gatv2")
    text = str(p)
    for part in ("pyg.GATv2Conv", "250.00", "500.00", "3.0 MiB", "flow x1", "numba:gatv2 x1"):
        assert part in text
    data = json.loads(json.dumps(p.to_dict()))
    assert data["launches"] == [{"target": "numba", "name": "gatv2", "count": 1}]
    assert data["by_symbol"]["pyg.GATv2Conv"]["reasons"] == {"flow": 1}
    with gnn_backend.profile() as nothing:
        pass
    assert "kernel launches: none" in str(nothing)

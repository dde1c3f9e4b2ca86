"""The public API on the real hosts, whichever are installed: one line, same answers, exact undo."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import subprocess
import sys
import threading

import pytest
import torch

import gnn_backend

LAYERS = {
    "dgl": ("dgl", "dgl.nn.pytorch.conv.gatv2conv"),
    "pyg": ("torch_geometric", "torch_geometric.nn.conv.gatv2_conv"),
}
NODES, EDGES = 30, 120


@pytest.fixture(params=sorted(LAYERS))
def host(request) -> str:
    pytest.importorskip(LAYERS[request.param][0])
    return request.param


def layer_class(host: str) -> type:
    return importlib.import_module(LAYERS[host][1]).GATv2Conv


def call(host: str) -> tuple[torch.nn.Module, tuple]:
    """A layer with two heads, and the arguments of one call."""
    torch.manual_seed(0)
    layer, x = layer_class(host)(6, 4, 2), torch.randn(NODES, 6)
    if host == "pyg":
        layer = layer_class(host)(6, 4, heads=2)
    edges = torch.randint(NODES, (2, EDGES))
    if host == "pyg":
        return layer, (x, edges)
    import dgl

    return layer, (dgl.add_self_loop(dgl.graph(tuple(edges), num_nodes=NODES)), x)


def test_one_line_accelerates_and_its_opposite_restores(host):
    layer, args = call(host)
    cls, before = layer_class(host), dict(vars(layer_class(host)))
    stock = layer(*args)
    gnn_backend.enable(mode="strict")
    with gnn_backend.profile() as p:
        fused = layer(*args)
    assert p.accelerated == 1 and sum(p.launches.values()) > 0
    assert torch.allclose(stock, fused, rtol=1e-4, atol=1e-5)
    gnn_backend.disable()
    assert vars(cls).keys() == before.keys()
    assert all(vars(cls)[name] is before[name] for name in before)
    with gnn_backend.profile() as p:
        assert torch.equal(layer(*args), stock)
    assert p.calls == 0 and not p.launches


def test_signature_is_the_hosts(host):
    before = inspect.signature(layer_class(host).forward)
    with gnn_backend.enabled():
        assert inspect.signature(layer_class(host).forward) == before


def test_compare_and_explain(host):
    layer, args = call(host)
    result = gnn_backend.compare(layer, *args, repeats=1)
    assert result.accelerated and result.launches > 0
    assert len(result.max_rel_error) > 4 and max(result.max_rel_error.values()) <= 2e-5
    (report,) = gnn_backend.explain(layer, *args).layers
    assert (report.symbol, report.accelerated, report.calls) == (f"{host}.GATv2Conv", True, 1)
    assert gnn_backend.explain(layer).accelerated


def test_verified_training_step(host):
    layer, args = call(host)
    with gnn_backend.enabled(mode="verify"), gnn_backend.profile() as p:
        layer(*args).sum().backward()
    assert p.accelerated == 1
    assert all(q.grad is not None for q in layer.parameters())


def test_only_the_named_host(host):
    layer, args = call(host)
    with gnn_backend.enabled(exclude=f"{host}.GATv2Conv"), gnn_backend.profile() as p:
        layer(*args)
    with gnn_backend.enabled(include="GATv2Conv", hosts=host), gnn_backend.profile() as q:
        layer(*args)
    assert (p.calls, q.accelerated) == (0, 1)


def test_one_instance(host):
    layer, args = call(host)
    stock = layer(*args)
    gnn_backend.accelerate(layer, mode="strict")
    for model in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with gnn_backend.profile() as p:
            assert torch.allclose(model(*args), stock, rtol=1e-4, atol=1e-5)
        assert p.accelerated == 1
    assert isinstance(layer, layer_class(host)) and repr(layer).startswith("GATv2Conv")
    assert type(gnn_backend.accelerate(layer, undo=True)) is layer_class(host)


def test_threads_run_fused_layers_side_by_side(host):
    layer, args = call(host)
    expected, results = layer(*args), []
    with gnn_backend.enabled(mode="strict"):
        threads = [threading.Thread(target=lambda: results.append(layer(*args))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 4
    assert all(torch.allclose(r, expected, rtol=1e-4, atol=1e-5) for r in results)


def test_compiled_model(host):
    layer, args = call(host)
    expected = layer(*args)
    torch._dynamo.reset()
    with gnn_backend.enabled(mode="strict"):
        compiled = torch.compile(layer, backend="eager")
        with gnn_backend.profile() as p:
            actual = compiled(*args)
    assert sum(p.launches.values()) > 0
    assert torch.allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ["hosts first", "enable first"])
def test_import_order(order):
    """Both hosts in a fresh process, before or after the one line."""
    for package, _ in LAYERS.values():
        pytest.importorskip(package)
    froms = [f"from {module} import GATv2Conv as {h}" for h, (_, module) in LAYERS.items()]
    imports = "; ".join(froms)
    enable = "gnn_backend.enable()"
    lines = [imports, enable] if order == "hosts first" else [enable, imports]
    script = "\n".join(
        [
            "import gnn_backend",
            *lines,
            "from gnn_backend.patching import stock",
            "patched = [stock(c.forward) is not c.forward for c in (dgl, pyg)]",
            "gnn_backend.disable()",
            "restored = [stock(c.forward) is c.forward for c in (dgl, pyg)]",
            "print(patched, restored)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[True, True] [True, True]", done.stderr

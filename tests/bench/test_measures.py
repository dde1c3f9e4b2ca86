"""Memory, time and layers: the building blocks of benchmarks and comparisons."""

from __future__ import annotations

import sys

import pytest
import torch

from gnn_backend.bench import hosts, resident, samples, timing
from gnn_backend.bench.hosts import Shape
from gnn_backend.datasets import GraphData, uniform
from gnn_backend.errors import InvalidArgument


def test_eager_time_is_the_median_and_not_the_first_call() -> None:
    import time

    pauses = iter([0.0] * 3 + [0.05, 0.002, 0.002])  # three warm-up calls, then the samples
    measured = timing.eager_ms(lambda: time.sleep(next(pauses)), "cpu", repeats=3)
    assert 2 <= measured < 45


@pytest.mark.parametrize(("host", "package"), [("pyg", "torch_geometric"), ("dgl", "dgl")])
def test_layers_are_built_from_their_signature(host: str, package: str) -> None:
    pytest.importorskip(package)
    data = GraphData("edges", torch.tensor([[0, 1], [1, 1]]), 4)  # three nodes without in-edges
    made = samples.sample(samples.Request(host, "GATv2Conv", data, Shape(6, 5, 3)))
    out = made.layer(*made.args, **made.kwargs)
    assert out.shape[0] == 4 and out.numel() == 4 * 3 * 5
    (x,) = (a for a in made.args if isinstance(a, torch.Tensor) and a.is_floating_point())
    assert x.shape == (4, 6)


def test_unknown_hosts_and_layers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="dgl or pyg"):
        hosts.layer_class("jax", "GATv2Conv")
    pytest.importorskip("torch_geometric")
    with pytest.raises(InvalidArgument, match="no such layer"):
        hosts.layer_class("pyg", "GATv9Conv")
    with pytest.raises(InvalidArgument, match="num_relations"):
        hosts.build(hosts.layer_class("pyg", "RGCNConv"), Shape())


def test_a_host_that_does_not_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_geometric")
    monkeypatch.setitem(sys.modules, "torch_geometric.nn.conv", None)
    with pytest.raises(hosts.HostDoesNotImport, match=r"pyg: installed but.*halted.*doctor"):
        hosts.layer_class("pyg", "GATv2Conv")


def test_resident_step_runs_forward_and_backward() -> None:
    pytest.importorskip("torch_geometric")
    data = GraphData("edges", uniform(4, 4, 9), 4)
    made = samples.sample(samples.Request("pyg", "GATv2Conv", data, Shape(6, 5, 3)))
    seen: list[bool] = []
    made.layer.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    made.layer.register_full_backward_hook(lambda *_: seen.append(True))
    resident.step(made)()
    resident.step(made, backward=False)()
    assert seen == [True, True, False]


def test_a_failed_measurement_names_the_cause() -> None:
    request = resident.Request("pyg", "GATv2Conv", "missing.npz", False)
    with pytest.raises(resident.MeasurementFailed, match="no such file"):
        resident.measure(request)

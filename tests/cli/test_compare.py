"""``compare`` and ``layers``: what they say comes from runs whose launches were counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnn_backend
from gnn_backend import config
from gnn_backend.bench import hosts
from gnn_backend.cli import compare as command
from gnn_backend.cli import layers as layers_command

SMALL = ("--heads", "2", "--dim", "4", "--in-dim", "8")
GRADIENTS = {
    "pyg": {"x", "att", "bias", "lin_l.weight", "lin_l.bias", "lin_r.weight", "lin_r.bias"},
    "dgl": {"feat", "attn", "fc_src.weight", "fc_src.bias", "fc_dst.weight", "fc_dst.bias"},
}
PACKAGES = {"pyg": "torch_geometric", "dgl": "dgl"}


def _arguments(host: str, file: Path, device: str) -> tuple[Any, ...]:
    pytest.importorskip(PACKAGES[host])
    return ("compare", "--host", host, "--layer", "GATv2Conv", "--graph", file,
            "--device", device, *SMALL)  # fmt: skip


@pytest.mark.parametrize("host", ["pyg", "dgl"])
def test_compare_on_the_emulator(
    invoke_json: Callable[..., Any], graph_file: Path, host: str
) -> None:
    found = invoke_json(*_arguments(host, graph_file, "emulator"))
    assert found["accelerated"] is True and found["reason"] is None
    assert found["launches"] > 0 and found["equal"] is True
    assert found["max_rel_error"].keys() == found["max_abs_error"].keys()
    assert found["max_rel_error"].keys() == {"out"} | GRADIENTS[host]
    assert max(found["max_rel_error"].values()) <= 2e-5
    assert found["peak_bytes"].keys() == found["ms"].keys() == {"stock", "backend"}
    assert found["num_edges"] == 300 and found["sampled_from_edges"] is None


@pytest.mark.slow
def test_compare_on_the_cpu_measures_in_fresh_processes(
    invoke_json: Callable[..., Any], graph_file: Path
) -> None:
    found = invoke_json(*_arguments("pyg", graph_file, "cpu"), "--repeats", "1")
    assert found["accelerated"] is True and found["launches"] > 0
    assert all(value > 0 for value in found["ms"].values())
    assert all(value >= 0 for value in found["peak_bytes"].values())


@pytest.mark.parametrize("layer", ["EGNNConv", "HeteroGraphConv"])
def test_compare_of_dgl_layers_on_resident_graphs(
    invoke_json: Callable[..., Any], graph_file: Path, layer: str
) -> None:
    """As on CUDA: kernels against the stock layer on the CPU, output by output."""
    pytest.importorskip("dgl")
    arguments = ("compare", "--host", "dgl", "--layer", layer, "--graph", graph_file, *SMALL)
    with config.override(residence_standin=True):
        found = invoke_json(*arguments, "--device", "emulator")
    assert (found["accelerated"], found["reason"], found["equal"]) == (True, None, True)
    assert found["reference"] == "stock on the CPU"
    assert found["ms"]["stock"] is None and found["peak_bytes"]["stock"] is None
    symbol = {"EGNNConv": "dgl.gspmm", "HeteroGraphConv": "dgl.HeteroGraphConv"}[layer]
    assert found["launches"] > 0 and symbol in found["symbols"]
    names = {"EGNNConv": {"out[0]", "out[1]", "coord_feat"},
             "HeteroGraphConv": {"out['a']", "out['b']", "inputs['a']"}}  # fmt: skip
    assert names[layer] <= found["max_rel_error"].keys() == found["judged_error"].keys()


def test_dgl_without_cuda(
    invoke_json: Callable[..., Any], graph_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dgl")
    monkeypatch.setattr(hosts, "dgl_has_cuda", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = invoke_json(*_arguments("dgl", graph_file, "cuda"))
    assert (found["reason"], found["accelerated"], found["equal"]) == ("dgl-no-cuda", False, None)


@pytest.mark.thorough
def test_large_graphs_are_sampled_for_the_emulator(
    invoke: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "EMULATOR_EDGES", 50)
    file = tmp_path / "large.npz"
    np.savez(file, edge_index=np.stack([np.arange(200), np.arange(200)[::-1]]), num_nodes=200)
    result = invoke(*_arguments("pyg", file, "emulator"), "--json")
    found = json.loads(result.stdout)
    assert (found["num_edges"], found["sampled_from_edges"]) == (50, 200)
    assert found["accelerated"] is True
    assert "50 edges drawn from the graph's 200" in result.stderr


def test_a_difference_is_reported_and_fails(
    invoke_json: Callable[..., Any], graph_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnn_backend.ops import projected_attention

    correct = projected_attention._combine
    monkeypatch.setattr(projected_attention, "_combine", lambda *a: correct(*a) * 1.001)
    found = invoke_json(*_arguments("pyg", graph_file, "emulator"), exit_code=1)
    assert found["equal"] is False and found["accelerated"] is True
    assert 5e-4 < found["max_rel_error"]["out"] < 2e-3


@pytest.mark.thorough
def test_a_layer_without_kernels_compares_stock_with_stock(
    invoke_json: Callable[..., Any], graph_file: Path
) -> None:
    pytest.importorskip("torch_geometric")
    arguments = ("compare", "--layer", "FeaStConv", "--graph", graph_file, "--device", "emulator")
    found = invoke_json(*arguments, *SMALL)
    assert (found["accelerated"], found["launches"]) == (False, 0)
    assert found["reason"] == "cpu-operators"  # of what it calls
    assert found["equal"] is True


def test_stock_in_another_precision_is_no_judge() -> None:
    result = {"judged_error": {"out": 0.5}, "reference": "stock in float32"}
    assert command._judged(result, torch.float16, 1e-2) == (None, [])


def test_an_error_of_the_size_of_rounding_is_none() -> None:
    result: dict[str, Any] = {"judged_error": {"out": 3e-5, "x": 1e-6}, "reference": "stock"}
    result |= {"rounding": {}, "own_rounding": {}}
    assert command._judged(result, torch.float32, 2e-5) == (False, [])
    result |= {"rounding": {"out": 2e-5, "x": 0.0}, "own_rounding": {"out": 1e-5, "x": 1e-6}}
    assert command._judged(result, torch.float32, 2e-5) == (True, ["out"])
    result["own_rounding"]["out"] = 7e-5
    assert command._judged(result, torch.float32, 2e-5) == (False, [])
    assert command._judged(result, torch.float64, 2e-5) == (False, [])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--graph", "missing.npz", "no such file"),
        ("--layer", "NoSuchConv", "NoSuchConv"),
        ("--host", "jax", "expected one of dgl, pyg"),
        ("--device", "tpu", "expected one of cpu, cuda, emulator"),
        ("--dtype", "int8", "expected one of float32"),
        ("--device", "cuda", "no CUDA device"),
        ("--layer", "GMMConv", "cannot be made from sizes alone; got arguments dim"),
        ("--layer", "PointNetConv", "PointNetConv cannot be run on this graph"),
        ("--layer", "MessagePassing", "MessagePassing"),
        ("--dim", "1000000000000", "cannot build GATv2Conv"),
    ],
)
def test_bad_usage(
    graph_file: Path, option: str, value: str, message: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from gnn_backend.cli import app

    if value == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    arguments = ["compare", "--graph", str(graph_file), "--host", "pyg", option, value]
    monkeypatch.setattr("sys.argv", ["gnn-backend", *arguments])
    with pytest.raises(SystemExit) as stop:
        app.main()
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert message in printed.err and printed.out == ""


AGGREGATING = ("GCNConv", "SAGEConv", "GraphConv", "GINConv", "GINEConv", "ChebConv", "TAGConv",
               "SGConv", "APPNP", "ARMAConv", "ClusterGCNConv", "LEConv", "PNAConv",
               "GatedGraphConv")  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
def test_layers(invoke_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = hosts.layer_classes
    some = ("GATv2Conv", "SAGEConv", "HeteroEmbedding", "CuGraphSAGEConv")  # all takes long
    monkeypatch.setattr(
        hosts,
        "layer_classes",
        lambda host: {n: c for n, c in found(host).items() if host == "pyg" or n in some},
    )
    rows = invoke_json("layers", "--device", "emulator")
    by_symbol = {row["symbol"]: row for row in rows}
    assert len(by_symbol) == len(rows)
    for host, package in PACKAGES.items():
        if any(row["host"] == host for row in rows):
            assert by_symbol[f"{host}.GATv2Conv"]["status"] == "fused", package
            assert by_symbol[f"{host}.GATv2Conv"]["reasons"] == []
            assert by_symbol[f"{host}.SAGEConv"] == {
                "host": host, "symbol": f"{host}.SAGEConv",
                "status": "fused", "reasons": [],
            }  # fmt: skip
            assert len([row for row in rows if row["host"] == host]) >= 9
    assert by_symbol["gnn_backend.nn.GraphTransformerConv"]["status"] == "fused"
    if "pyg.GATv2Conv" in by_symbol:
        assert by_symbol["pyg.FusedGATConv"]["status"] == "fused"
        fused = {row["symbol"] for row in rows if row["status"] == "fused"}
        assert {f"pyg.{name}" for name in AGGREGATING} <= fused
    if "dgl.GATv2Conv" in by_symbol:
        assert by_symbol["dgl.attention_pattern"]["status"] == "fused"
        assert by_symbol["dgl.HeteroEmbedding"]["reasons"] == ["no-operators"]
        assert by_symbol["dgl.ops.gspmm"]["reasons"] == ["cpu-operators"]
        assert "pylibcugraphops" in by_symbol["dgl.CuGraphSAGEConv"]["reasons"][0]
    assert all(row["status"] in ("fused", "kernels", "traced", "stock") for row in rows)


@pytest.mark.parametrize(
    ("host", "name"),
    [("gnn_backend", "nn.GraphTransformerConv"), ("pyg", "FusedGATConv"),
     ("dgl", "attention_pattern")],
)  # fmt: skip
def test_layers_without_a_stock_of_that_form_are_judged_too(
    monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    if host in PACKAGES:
        pytest.importorskip(PACKAGES[host])
    assert layers_command._try(host, name, "cpu")[0] == "fused"
    from gnn_backend.ops import attention

    correct = attention.softmax_attention
    monkeypatch.setattr(attention, "softmax_attention", lambda *a, **k: _scaled(correct(*a, **k)))
    status, reasons = layers_command._try(host, name, "cpu")
    assert status == "stock" and "differs" in reasons[0]


def _scaled(found: Any) -> Any:
    return (found[0] * 1.01, *found[1:]) if isinstance(found, tuple) else found * 1.01


@pytest.mark.parametrize("fault", ["wrong", "fallback", "no launch"])
def test_a_status_needs_launches_and_the_right_result(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    torch_geometric = pytest.importorskip("torch_geometric")
    from gnn_backend.adapters.pyg import conv
    from gnn_backend.ops import projected_attention
    from gnn_backend.patching import registry

    patch = next(p for p in registry.known() if p.symbol == "pyg.GATv2Conv")
    correct = projected_attention._combine
    if fault == "wrong":
        monkeypatch.setattr(projected_attention, "_combine", lambda *a: correct(*a) * 1.01)
    elif fault == "fallback":
        monkeypatch.setattr(conv, "changed_reason", lambda *_: "hooks")
    else:
        stock = torch_geometric.nn.GATv2Conv.forward
        patch.replacement.resolve()

        def without_us(*args: Any, **kwargs: Any) -> Any:
            with gnn_backend.disabled():
                return stock(*args, **kwargs)

        monkeypatch.setattr(patch.replacement, "fast", without_us)
    status, reasons = layers_command._try("pyg", "GATv2Conv", "emulator")
    expected = {"wrong": "differs", "fallback": "hooks", "no launch": "no kernel was launched"}
    # PyG's own code calls utilities that have kernels.
    assert status == ("kernels" if fault == "fallback" else "stock")
    assert expected[fault] in reasons[0]

"""The table of DGL's layers: complete, deterministic, and each layer runs as its row says."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl.nn

from gnn_backend import config
from gnn_backend.adapters.dgl.aggregating import engine_reason
from gnn_backend.bench import dgl_layers, hosts, resident, samples
from gnn_backend.bench.hosts import Shape
from gnn_backend.cli import layers as command
from gnn_backend.compare import Comparison
from gnn_backend.datasets import GraphData, uniform
from gnn_backend.errors import InvalidArgument, Unsupported
from gnn_backend.patching import registry

DATA = GraphData("small", uniform(20, 19, 80), 20)  # node 19 has no in-edges
SMALL = Shape(8, 4, 2)
NAMES = [*dgl_layers.LAYERS, *(f"ops.{name}" for name in dgl_layers.OPERATORS)]
WITHOUT_GRADIENT = {
    "GNNExplainer", "HeteroGNNExplainer", "KNNGraph", "LabelPropagation", "RadiusGraph",
    "SegmentedKNNGraph",
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small graphs: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def request(name: str, **further: Any) -> samples.Request:
    return samples.Request("dgl", name, DATA, SMALL, **further)


def worst(found: Comparison) -> float:
    return max(found.judged_error.values())


def test_everything_that_dgl_exports_is_in_the_table_or_excluded() -> None:
    exported = {
        name
        for name, value in vars(dgl.nn).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or isinstance(value, types.FunctionType))
    }
    assert exported == dgl_layers.LAYERS.keys() | dgl_layers.NOT_COMPARED.keys()
    assert not dgl_layers.LAYERS.keys() & dgl_layers.NOT_COMPARED.keys()
    assert hosts.layer_classes("dgl").keys() <= exported


def test_operators_that_are_patched_are_in_the_table() -> None:
    patched = {p.attribute.removeprefix("_") for p in registry.known() if p.host == "dgl"}
    assert patched & set(vars(dgl.ops)) >= dgl_layers.OPERATORS.keys()
    public = {name for name in patched if callable(getattr(dgl.ops, name, None))}
    assert public == dgl_layers.OPERATORS.keys()


#: What is fused on the CPU, and the layer that is.
FUSED = {
    **{n: n for n in ("AGNNConv", "DotGatConv", "EdgeGATConv", "GATConv", "GATv2Conv")},
    **{n: n for n in ("HGTConv", "HeteroGraphConv", "RelGraphConv")},
}
#: What is products alone, which are torch's on the CPU.
PRODUCTS = ("HeteroLinear", "TypedLinear")
#: What is fused as well where an engine aggregates: all that sum with weights or do more.
AGGREGATING = {
    **{n: n for n in (
        "APPNPConv", "EdgeWeightNorm", "GINConv", "GINEConv", "GatedGraphConv", "GraphConv",
        "PNAConv", "SAGEConv", "SGConv", "TAGConv",
    )},
    "GCN2Conv": "EdgeWeightNorm",
    **{f"{kind}Explainer": "GraphConv" for kind in ("GNN", "HeteroGNN", "HeteroPG", "PG")},
}  # fmt: skip
STOCK = ("cpu-operators", "cpu-sums", "no-operators", "parametrized")


@pytest.mark.filterwarnings("ignore:TypedStorage", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(6)
def test_on_the_cpu(name: str) -> None:
    """Built twice a layer is the same twice, and its own code agrees with ours around it."""
    ours, stock = samples.sample(request(name)), samples.sample(request(name))
    found = samples.compare("dgl", ours, stock, repeats=0)
    assert worst(found) <= 2e-5
    gradients = [error for error in found.judged_error if not error.startswith("out")]
    assert bool(gradients) != (name in WITHOUT_GRADIENT)
    if name in AGGREGATING and engine_reason(torch.ones(1)) is None:
        assert f"dgl.{AGGREGATING[name]}" in found.symbols and found.launches > 0
    elif name in PRODUCTS:
        assert found.symbols == [f"dgl.{name}"] and found.accelerated
    elif name in FUSED:
        assert found.symbols == [f"dgl.{FUSED[name]}"] and found.launches > 0
    else:
        assert found.reason in STOCK and not found.launches
    resident.step(stock)()
    resident.step(stock, backward=False)()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    made = samples.sample(request("EdgeGATConv", dtype=dtype))
    assert {t.dtype for t in (*made.args[1:], *made.layer.parameters())} == {dtype}


@pytest.fixture
def standin() -> Iterator[None]:
    """The CPU in the place of CUDA: DGL's graphs are resident, kernels run in the emulator."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels with")
    with config.override(residence_standin=True):
        yield


BY_KERNELS = {
    "AGNNConv": {"AGNNConv"},
    "AvgPooling": {"readout"},
    "EdgeWeightNorm": {"EdgeWeightNorm"},
    "GATConv": {"GATConv"},
    "GINConv": {"GINConv"},
    "GMMConv": {"gspmm", "gsddmm"},
    "GroupRevRes": {"SAGEConv"},
    "HGTConv": {"HGTConv"},
    "HeteroGraphConv": {"HeteroGraphConv"},
    "LabelPropagation": {"gspmm"},
    "MaxPooling": {"readout"},
    "PGExplainer": {"GraphConv"},
    "PNAConv": {"PNAConv"},
    "RelGraphConv": {"RelGraphConv"},
    "SAGEConv": {"SAGEConv"},
    "TWIRLSConv": {"gspmm", "gsddmm"},
    "ops.edge_softmax": {"edge_softmax", "edge_softmax_backward"},
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("name", BY_KERNELS)
def test_on_resident_graphs(name: str, standin: None) -> None:
    """What is different on CUDA is the device's name alone."""
    ours, stock = samples.samples(request(name))
    assert stock is not None
    with config.override(cpu_target="emulator"):
        found = samples.compare("dgl", ours, stock, repeats=0)
    assert found.reference == "stock on the CPU" and worst(found) <= 2e-5
    assert set(found.symbols) == {f"dgl.{symbol}" for symbol in BY_KERNELS[name]}
    assert found.accelerated and found.launches > 0 and found.reasons == []


@pytest.mark.parametrize(
    "name", ["GATv2Conv", "GCN2Conv", "HeteroEmbedding", "SGConv", "TypedLinear"]
)
def test_status_on_resident_graphs(name: str, standin: None) -> None:
    status, reasons = command._try("dgl", name, "emulator")
    wanted = {
        "GATv2Conv": ("fused", []),
        "HeteroEmbedding": ("stock", ["no-operators"]),
        "GCN2Conv": ("kernels", []),
        "SGConv": ("fused", []),
        "TypedLinear": ("fused", []),
    }
    assert (status, reasons) == wanted[name]


@pytest.mark.parametrize(
    ("symbols", "launches", "status"),
    [
        (["dgl.gather_mm", "dgl.gather_mm_scatter"], 0, "products"),
        (["dgl.segment_mm", "dgl.segment_mm_backward_weight"], 0, "products"),
        (["dgl.gather_mm", "dgl.gspmm"], 3, "kernels"),
        (["dgl.gspmm"], 0, "stock"),  # accelerated, but nothing ran
        ([], 0, "stock"),
    ],
)
def test_status_of_typed_products(
    monkeypatch: pytest.MonkeyPatch, symbols: list[str], launches: int, status: str
) -> None:
    """Of one type or in float64 they are torch's, which nothing launches."""
    made = samples.compare("dgl", *samples.samples(request("ops.gather_mm")), repeats=0)
    found = dataclasses.replace(made, symbols=symbols, launches=launches, reasons=[])
    monkeypatch.setattr(samples, "compare", lambda *_, **__: found)
    assert command._try("dgl", "ops.gather_mm", "cpu")[0] == status


def test_a_wrong_kernel_shows(standin: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from gnn_backend.adapters.dgl import kernels

    correct = kernels.OPERATORS["gspmm"]

    def wrong(*args: Any, **options: Any) -> Any:
        out, *arguments = correct(*args, **options)
        return out * 1.001, *arguments

    monkeypatch.setitem(kernels.OPERATORS, "gspmm", wrong)
    status, reasons = command._try("dgl", "GMMConv", "emulator")
    assert status == "stock" and "differs from stock" in reasons[0]


def test_graphs_that_cannot_be_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "dgl_has_cuda", lambda: False)
    with pytest.raises(Unsupported, match="dgl-no-cuda"):
        samples.samples(request("GraphConv", device="cuda"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("CuGraphSAGEConv", "cannot be compared .needs pylibcugraphops"), ("NoConv", "no such layer")],
)
def test_layers_that_cannot_be_compared(name: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        samples.sample(request(name))

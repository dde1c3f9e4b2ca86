"""Every layer of DGL on CUDA, against the stock layer on the CPU."""

from __future__ import annotations

import importlib.util
import traceback

import torch

from gnn_backend.datasets import GraphData, rmat
from tests.gpu import support

pytestmark = support.MARKS

_TOLERANCE = 2e-5
# Convolutions that write to a node from its edges by functions of their own, and dense ones.
_NO_KERNELS = {
    "AtomicConv", "DGNConv", "DenseChebConv", "DenseGraphConv", "DenseSAGEConv",
}  # fmt: skip
_FALLS_BACK = {"DGNConv": {"parametrized"}}  # a PNAConv with towers of its own


def test_every_layer() -> None:
    """In one test, for most of the time goes into loading; prints the layers that fail."""
    if importlib.util.find_spec("dgl") is None:
        support.skip("DGL is not installed")
    import gnn_backend.adapters.dgl  # noqa: F401 - lets DGL load
    from gnn_backend.bench import dgl_layers

    data = GraphData("rmat", rmat(300, 3000), 300)
    names = [*dgl_layers.LAYERS, *(f"ops.{name}" for name in dgl_layers.OPERATORS)]
    failed = {name: problem for name in names if (problem := _problem(name, data))}
    for name, problem in failed.items():
        print(f"{name}: {problem}")
    assert not failed, f"{len(failed)} of {len(names)} layers: {', '.join(failed)}"


def test_the_public_comparison() -> None:
    """It is given a graph on CUDA alone, and copies it to the CPU for the stock layer."""
    if importlib.util.find_spec("dgl") is None:
        support.skip("DGL is not installed")
    import gnn_backend

    with gnn_backend.enabled(hosts="dgl"):
        import dgl.nn

        graph = dgl.graph(tuple(rmat(300, 3000)), num_nodes=300).to("cuda")
        layer = dgl.nn.SAGEConv(16, 8, "pool").cuda()
        found = gnn_backend.compare(layer, graph, torch.randn(300, 16).cuda(), repeats=1)
    assert found.reference == "stock on the CPU" and found.accelerated and found.launches > 0
    assert max(found.judged_error.values()) <= _TOLERANCE
    assert found.ms["stock"] is None and found.ms["backend"] is not None


def _problem(name: str, data: GraphData) -> str:
    """What is wrong with a layer on CUDA, or an empty text."""
    from gnn_backend.bench import dgl_layers, samples
    from gnn_backend.bench.hosts import Shape
    from gnn_backend.judging import differing

    request = samples.Request("dgl", name, data, Shape(16, 8, 2), "cuda")
    try:
        ours, stock = samples.samples(request)
        found = samples.compare("dgl", ours, stock, repeats=0)
        torch.cuda.synchronize()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    # Without any operator, it is torch on CUDA against torch on the CPU.
    ours_ran = found.launches or "no-operators" not in found.reasons
    rounding, own = found.rounding, found.own_rounding
    wrong = differing(found.judged_error, rounding, own, _TOLERANCE)
    if wrong and ours_ran:
        shown = {n: f"{e:.1e}, rounding {rounding.get(n)}, {own.get(n)}" for n, e in wrong.items()}
        return f"differs from stock: {shown}"
    if set(found.reasons) - {"no-operators"} - _FALLS_BACK.get(name, set()):
        return f"fell back: {found.reasons}"
    operates = name in dgl_layers.CONVOLUTIONS or name.startswith("ops.")
    if not operates or name in _NO_KERNELS or samples.products_alone(found):
        return ""
    if not found.launches:
        return f"no kernel was launched: {found.reasons}"
    return ""

"""Whole attention layers of the hosts, stock and accelerated, beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gnn_backend import memory
from gnn_backend.bench import hosts, resident, timing
from gnn_backend.bench.hosts import Shape
from gnn_backend.datasets import GraphData

if TYPE_CHECKING:
    from gnn_backend.bench.attention import Settings

_PASSING = "GATv2Conv"  # whose message passing alone is measured too
Step = Callable[[bool], None]  # runs forward, and backward if True

# PyG keeps about this many [E, H, D] tensors at the peak of an attention layer's training step.
_EDGE_TENSORS = 5.5


def gpu_layers(
    name: str, data: GraphData, dtype: torch.dtype, settings: Settings
) -> dict[str, Any]:
    """PyG's layer, its message passing alone, and the accelerated layer, on a GPU.

    Where PyG is missing the answer is empty; a stock run that does not fit says so in words.
    """
    if not hosts.installed("pyg"):
        return {}
    from gnn_backend import enabled

    shape = settings.shape
    module = hosts.build_on(hosts.layer_class("pyg", name), shape, settings.device, dtype)
    x = hosts.features(data, shape, settings.device, dtype)
    edges = data.edge_index
    layer = _layer_step(module, x, edges)
    counts = min(settings.inner, 5), settings.repeats
    with enabled(hosts=["pyg"]):
        found: dict[str, Any] = {"pyg_accelerated": measured(layer, settings.device, *counts)}
    needed = stock_bytes(data.num_edges + data.num_nodes, shape, dtype)
    free = memory.available_bytes(settings.device)
    if free is not None and needed > free and not settings.force_stock:
        return {**found, "pyg": out_of_memory(needed)}
    found["pyg"] = measured(layer, settings.device, *counts)
    if name == _PASSING:
        passing = _passing_step(module, data, shape, dtype)
        found["pyg_message_passing"] = measured(passing, settings.device, *counts)
    return found


def cpu_layers(name: str, graph: str, dtype: str, settings: Settings) -> dict[str, Any]:
    """Each installed host's layer, stock and accelerated, every one in a process of its own."""
    found: dict[str, Any] = {}
    for host in hosts.HOSTS:
        if not hosts.installed(host):
            continue
        for backend in (False, True):
            request = resident.Request(
                host, name, graph, backend, settings.shape, dtype, repeats=settings.repeats
            )
            try:
                result: Any = vars(resident.measure(request))
            except resident.MeasurementFailed as error:
                result = str(error)
            found[f"{host}_accelerated" if backend else host] = result
    return found


def stock_bytes(num_edges: int, shape: Shape, dtype: torch.dtype) -> int:
    """Estimated peak bytes of the stock layer's forward and backward."""
    return int(_EDGE_TENSORS * num_edges * shape.heads * shape.dim * dtype.itemsize)


def _layer_step(module: torch.nn.Module, x: torch.Tensor, edges: torch.Tensor) -> Step:
    def call(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            out = module(x, edges)
        if backward:
            torch.autograd.grad(out, [x, *module.parameters()], torch.ones_like(out))

    return call


def _passing_step(module: Any, data: GraphData, shape: Shape, dtype: torch.dtype) -> Step:
    """What the layer does on edges: scores and weighted sum, without the projections."""
    size, edges = (data.num_nodes, shape.heads, shape.dim), data.edge_index
    left, right = (
        torch.randn(size, device=edges.device).to(dtype).requires_grad_() for _ in range(2)
    )

    def call(backward: bool) -> None:
        pair = (left, right)
        with torch.set_grad_enabled(backward):
            alpha = module.edge_updater(edges, x=pair, edge_attr=None)
            out = module.propagate(edges, x=pair, alpha=alpha)
        if backward:
            torch.autograd.grad(out, [left, right, module.att], torch.ones_like(out))

    return call


def out_of_memory(needed: int) -> str:
    """What stands in the place of figures that were not tried."""
    return f"out-of-memory (estimated {needed / 2**30:.0f} GiB)"


def measured(step: Step, device: str, inner: int, repeats: int) -> dict[str, float] | str:
    """Eager times and peak memory of a step on a GPU, or "out-of-memory"."""
    try:
        step(True)
        return {
            "forward_ms": timing.eager_ms(lambda: step(False), device, inner, repeats),
            "forward_backward_ms": timing.eager_ms(lambda: step(True), device, inner, repeats),
            "peak_bytes": memory.cuda_peak_bytes(lambda: step(True)),
        }
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return "out-of-memory"

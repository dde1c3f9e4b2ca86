"""DGL's own operators on a graph that lives on a GPU, and what moving the graph there costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnn_backend.bench import hosts, timing
from gnn_backend.datasets import GraphData


def measure(
    data: GraphData, heads: int, dim: int, device: str, repeats: int
) -> dict[str, Any] | None:
    """Eager milliseconds of DGL's operators and of moving a graph; None without DGL.

    Parameters
    ----------
    data : GraphData
        On ``device``.
    heads, dim : int
        Features are float32 [N, heads, dim].
    device : str
        A CUDA device.
    repeats : int
        Samples; the median counts.

    Returns
    -------
    dict or None
        ``move_ms``: the graph from the CPU to the device until its edges are grouped by
        destination; ``copy_ms``, ``sort_ms``: a copy of its two arrays through page-locked
        memory, and one sort; ``operators``: ``forward_ms`` and ``forward_backward_ms`` by name,
        ``transformer`` being u_dot_v, edge softmax and u_mul_e_sum.
    """
    if not hosts.installed("dgl"):
        return None
    import dgl

    from gnn_backend import enabled

    ends = data.edge_index.to(torch.int32).cpu()
    with enabled(hosts="dgl"):
        graph = dgl.graph((ends[0], ends[1]), num_nodes=data.num_nodes)
        there = graph.to(device)
        x = [
            torch.randn(data.num_nodes, heads, dim, device=device, requires_grad=True)
            for _ in range(3)
        ]
        weights = torch.randn(data.num_edges, 1, 1, device=device, requires_grad=True)
        calls: dict[str, tuple[Callable[..., Tensor], list[Tensor]]] = {
            "copy_u_sum": (dgl.ops.copy_u_sum, x[:1]),
            "copy_u_max": (dgl.ops.copy_u_max, x[:1]),
            "u_mul_e_sum": (dgl.ops.u_mul_e_sum, [x[0], weights]),
            "transformer": (_transformer, x),
        }
        on_device = ends.to(device)
        return {
            "move_ms": _wall_ms(lambda: graph.to(device).in_degrees(), device, repeats),
            "copy_ms": _wall_ms(lambda: _copied(ends, device), device, repeats),
            "sort_ms": _wall_ms(lambda: torch.sort(on_device[1], stable=True), device, repeats),
            "operators": {
                name: _operator(call, there, leaves, device, repeats)
                for name, (call, leaves) in calls.items()
            },
        }


def _transformer(graph: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as DGL's users write it."""
    import dgl

    logits = dgl.ops.u_dot_v(graph, key, query)
    return dgl.ops.u_mul_e_sum(graph, value, dgl.ops.edge_softmax(graph, logits))


def _copied(ends: Tensor, device: str) -> list[Tensor]:
    if torch.device(device).type == "cuda":
        ends = ends.pin_memory()
    return [end.to(device, non_blocking=True) for end in ends]


def _operator(
    call: Callable[..., Tensor], graph: Any, leaves: list[Tensor], device: str, repeats: int
) -> dict[str, float]:
    cotangent = torch.randn_like(leaves[0])

    def both() -> None:
        torch.autograd.grad(call(graph, *leaves), leaves, cotangent)

    def forward() -> None:
        with torch.no_grad():
            call(graph, *leaves)

    return {
        "forward_ms": timing.eager_ms(forward, device, repeats=repeats),
        "forward_backward_ms": timing.eager_ms(both, device, repeats=repeats),
    }


def _wall_ms(call: Callable[[], Any], device: str, repeats: int) -> float:
    """On the clock, from an idle device to an idle device; the first call is not counted."""

    def whole() -> None:
        call()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()

    whole()
    return timing.wall_ms(whole, repeats)

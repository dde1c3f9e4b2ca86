"""DGL's own operators on a graph that lives on a GPU, and what moving the graph there costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnn_backend.bench import hosts, timing
from gnn_backend.datasets import GraphData

#: Operators of ``dgl.ops`` that are run forward, and forward and backward.
OPERATORS = ("copy_u_sum", "copy_u_max", "u_mul_e_sum")


def measure(data: GraphData, width: int, device: str, repeats: int) -> dict[str, Any] | None:
    """Eager milliseconds of DGL's operators and of moving a graph; None without DGL.

    Parameters
    ----------
    data : GraphData
        On ``device``.
    width : int
        Columns of the features, float32.
    device : str
        A CUDA device.
    repeats : int
        Samples; the median counts.

    Returns
    -------
    dict or None
        ``move_ms``: the graph from the CPU to the device until its edges are grouped by
        destination; ``move_limit_ms``: a copy of its two arrays and one sort; ``operators``:
        ``forward_ms`` and ``forward_backward_ms`` by name.
    """
    if not hosts.installed("dgl"):
        return None
    import dgl

    from gnn_backend import enabled

    ends = data.edge_index.to(torch.int32).cpu()
    with enabled(hosts="dgl"):
        graph = dgl.graph((ends[0], ends[1]), num_nodes=data.num_nodes)
        there = graph.to(device)
        x = torch.randn(data.num_nodes, width, device=device, requires_grad=True)
        weights = torch.randn(data.num_edges, 1, device=device, requires_grad=True)
        narrow = x.detach()[:, :1].contiguous()
        return {
            "move_ms": _wall_ms(
                lambda: dgl.ops.copy_u_sum(graph.to(device), narrow), device, repeats
            ),
            "move_limit_ms": _wall_ms(lambda: _copied_and_sorted(ends, device), device, repeats),
            "operators": {
                name: _operator(getattr(dgl.ops, name), there, x, weights, device, repeats)
                for name in OPERATORS
            },
        }


def _copied_and_sorted(ends: Tensor, device: str) -> Any:
    if torch.device(device).type == "cuda":
        ends = ends.pin_memory()
    src, dst = (end.to(device, non_blocking=True) for end in ends)
    return src, torch.sort(dst, stable=True)


def _operator(
    operator: Callable[..., Tensor],
    graph: Any,
    x: Tensor,
    weights: Tensor,
    device: str,
    repeats: int,
) -> dict[str, float]:
    leaves = (x, weights) if "_e_" in operator.__name__ else (x,)
    cotangent = torch.randn_like(x)

    def both() -> None:
        torch.autograd.grad(operator(graph, *leaves), leaves, cotangent)

    def forward() -> None:
        with torch.no_grad():
            operator(graph, *leaves)

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

"""Attention layers on the CPU, stock and accelerated, with the time of their projections alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from gnn_backend.bench import hosts, resident, samples, timing
from gnn_backend.bench.environment import cpu_report, document
from gnn_backend.bench.hosts import Shape
from gnn_backend.datasets import GraphData, load

LAYERS = {
    "dgl": ("GATConv", "GATv2Conv", "EdgeGATConv", "DotGatConv", "AGNNConv"),
    "pyg": ("GATConv", "GATv2Conv", "TransformerConv", "SuperGATConv", "AGNNConv"),
}


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run.

    ``rounds`` is how often stock and accelerated are measured in turn, each in a process of its
    own that takes the median of ``repeats``; the least of them counts, as other work on the
    machine only ever adds to a time.
    """

    hosts: tuple[str, ...] = hosts.HOSTS
    layers: tuple[str, ...] = ()  # none: all
    shape: Shape = field(default_factory=Shape)
    repeats: int = 5
    rounds: int = 3


def run(graphs: Sequence[str], settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every layer on every graph.

    Returns
    -------
    dict
        The JSON document that ``bench show`` reads; times of forward and backward together.
    """
    rows = []
    for name in graphs:
        data = load(name)
        for host in settings.hosts:
            for layer in LAYERS[host]:
                if not settings.layers or layer in settings.layers:
                    say(f"{name} {host} {layer}")
                    rows.append(_row(name, data, host, layer, settings))
    return {**document("layers", asdict(settings), cpu_report()), "layers": rows}


def _row(name: str, data: GraphData, host: str, layer: str, settings: Settings) -> dict[str, Any]:
    found: dict[bool, list[resident.Measurement]] = {False: [], True: []}
    for _ in range(settings.rounds):
        for accelerated, measured in found.items():
            request = resident.Request(
                host, layer, name, accelerated, settings.shape, repeats=settings.repeats
            )
            measured.append(resident.measure(request, GNN_BACKEND_CPU_TARGET="numba"))
    sides = {"stock": found[False], "backend": found[True]}
    best = {side: min(m.forward_backward_ms for m in all_) for side, all_ in sides.items()}
    return {
        "graph": data.name,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "host": host,
        "layer": layer,
        "ms": best,
        "forward_ms": {side: min(m.forward_ms for m in all_) for side, all_ in sides.items()},
        "peak_bytes": {side: all_[0].peak_bytes for side, all_ in sides.items()},
        "projections_ms": _projections_ms(host, layer, data, settings),
        "speed": best["stock"] / best["backend"],
    }


def _projections_ms(host: str, layer: str, data: GraphData, settings: Settings) -> float:
    """Forward and backward of the products of node features and weights, and nothing else."""
    made = samples.sample(samples.Request(host, layer, data, settings.shape))
    x = hosts.features(data, settings.shape, "cpu", torch.float32)
    weights = [
        module.weight
        for name, module in made.layer.named_modules()
        if "edge" not in name and _is_projection(module, x.shape[1])
    ]
    if not weights:
        return 0.0

    def products() -> None:
        for weight in weights:
            out = nn.functional.linear(x, weight)
            torch.autograd.grad(out, (x, weight), torch.ones_like(out))

    rounds = (
        timing.eager_ms(products, "cpu", repeats=settings.repeats) for _ in range(settings.rounds)
    )
    return min(rounds)


def _is_projection(module: nn.Module, width: int) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.dim() == 2 and weight.shape[1] == width

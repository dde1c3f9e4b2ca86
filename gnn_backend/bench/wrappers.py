"""Wrappers over relations, one layer a relation: stock, accelerated, and how many launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnn_backend import memory
from gnn_backend.bench import hosts, timing
from gnn_backend.bench.environment import cpu_report, device_report, document

HEADS = 4
Step = Callable[[bool], None]  # runs forward, and backward if True
_Make = Callable[[int], nn.Module]


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run.

    Attributes
    ----------
    host : {"pyg", "dgl"}
        ``HeteroConv`` or ``HeteroGraphConv``; stock DGL runs on the CPU alone.
    layers : tuple of str
        Keys of ``LAYERS[host]``; none: all.
    relations : tuple of int
        Numbers of relations, each measured.
    types, nodes, edges : int
        Node types, nodes of each, edges of each relation.
    width : int
        Of features and results.
    device : str
    repeats : int
        Samples; the median counts.
    """

    host: str = "pyg"
    layers: tuple[str, ...] = ()
    relations: tuple[int, ...] = (200,)
    types: int = 10
    nodes: int = 1000
    edges: int = 4000
    width: int = 64
    device: str = "cuda"
    repeats: int = 7


def _pyg(name: str, **options: Any) -> _Make:
    def make(width: int) -> nn.Module:
        if "heads" in options:
            sizes: tuple[Any, ...] = ((width, width), width // HEADS)
        else:
            sizes = (width, width)
        made: nn.Module = hosts.layer_class("pyg", name)(*sizes, **options)
        return made

    return make


def _dgl(name: str, *last: Any) -> _Make:
    def make(width: int) -> nn.Module:
        sizes = (width, width // HEADS, HEADS) if name.startswith("GAT") else (width, width, *last)
        made: nn.Module = hosts.layer_class("dgl", name)(*sizes)
        return made

    return make


_ATTENTION = {"heads": HEADS, "add_self_loops": False}
LAYERS: dict[str, dict[str, _Make]] = {
    "pyg": {
        "SAGEConv(mean)": _pyg("SAGEConv"),
        "SAGEConv(max)": _pyg("SAGEConv", aggr="max"),
        "GraphConv": _pyg("GraphConv"),
        "GATConv": _pyg("GATConv", **_ATTENTION),
        "GATv2Conv": _pyg("GATv2Conv", **_ATTENTION),
    },
    "dgl": {
        "GraphConv": _dgl("GraphConv"),
        "SAGEConv(mean)": _dgl("SAGEConv", "mean"),
        "SAGEConv(pool)": _dgl("SAGEConv", "pool"),
        "GATConv": _dgl("GATConv"),
        "GATv2Conv": _dgl("GATv2Conv"),
    },
}


def run(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure a wrapper over each layer, at each number of relations.

    Returns
    -------
    dict
        The JSON document that ``bench show`` reads.
    """
    report = device_report() if settings.device == "cuda" else cpu_report()
    rows = []
    for label in settings.layers or LAYERS[settings.host]:
        for count in settings.relations:
            say(f"{settings.host} {label}, {count} relations")
            rows.append({"layer": label, "relations": count, **_row(label, count, settings)})
    return {**document("wrappers", asdict(settings), report), "wrappers": rows}


def _row(label: str, count: int, settings: Settings) -> dict[str, Any]:
    from gnn_backend import enabled, profile

    step = _step(label, count, settings)
    theirs = _measured(step, settings)
    with enabled(hosts=[settings.host]):
        ours = _measured(step, settings)
        with profile() as report:
            step(True)
    launches = sum(report.launches.values())
    return {"stock": theirs, "backend": ours, "launches": launches}


def _measured(step: Step, settings: Settings) -> dict[str, Any]:
    def clock(backward: bool) -> float:
        inner, repeats = 3, settings.repeats
        return timing.eager_ms(lambda: step(backward), settings.device, inner, repeats)

    peak = memory.cuda_peak_bytes(lambda: step(True)) if settings.device == "cuda" else None
    return {"inference_ms": clock(False), "training_ms": clock(True), "peak_bytes": peak}


def _step(label: str, count: int, settings: Settings) -> Step:
    """A call of the wrapper on drawn relations, each between two of the types."""
    generator = torch.Generator().manual_seed(0)
    device, names = settings.device, [f"type{t}" for t in range(settings.types)]
    edges: dict[tuple[str, str, str], Tensor] = {}
    for r in range(count):
        ends = names[r % len(names)], names[(7 * r + r // len(names)) % len(names)]
        shape = (2, settings.edges)
        drawn = torch.randint(settings.nodes, shape, generator=generator)
        edges[ends[0], f"relation{r}", ends[1]] = drawn.to(device)
    shape = (settings.nodes, settings.width)
    x = {
        name: torch.randn(shape, generator=generator).to(device).requires_grad_() for name in names
    }
    make = LAYERS[settings.host][label]
    layers = {name: make(settings.width) for name in edges}
    wrapper = _heteroconv if settings.host == "pyg" else _heterographconv
    module, given = wrapper(layers, edges, x, device)

    def step(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            out = list(module(*given).values())
        if backward:
            wanted = [*x.values(), *module.parameters()]
            ones = [torch.ones_like(o) for o in out]
            torch.autograd.grad(out, wanted, ones, allow_unused=True)

    return step


def _heteroconv(
    layers: dict[Any, nn.Module], edges: dict[Any, Tensor], x: dict[str, Tensor], device: str
) -> tuple[nn.Module, tuple[Any, ...]]:
    module: nn.Module = hosts.layer_class("pyg", "HeteroConv")(layers, aggr="sum")
    return module.to(device), (x, edges)


def _heterographconv(
    layers: dict[Any, nn.Module], edges: dict[Any, Tensor], x: dict[str, Tensor], device: str
) -> tuple[nn.Module, tuple[Any, ...]]:
    import dgl

    counts = {name: len(table) for name, table in x.items()}
    graph = dgl.heterograph({k: tuple(e) for k, e in edges.items()}, num_nodes_dict=counts)
    named = {name: layer for (_, name, _), layer in layers.items()}
    module: nn.Module = hosts.layer_class("dgl", "HeteroGraphConv")(named, aggregate="sum")
    return module.to(device), (graph.to(device), x)


def names(host: str) -> Sequence[str]:
    """Layers that can be measured in a host's wrapper."""
    return tuple(LAYERS[host])

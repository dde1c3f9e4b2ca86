"""The benchmark of relational layers: ours with and without each optimization, and the hosts'.

One layer on a whole graph, every node with features, gradients to them and to every parameter. Ours
are the programs of ``gnn_backend.layers.relational``. Vanilla stores products for every edge; C
stores them for distinct pairs (compact materialization), F reorders linear operators, and by
default both are chosen by the graph's sizes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnn_backend import memory
from gnn_backend.bench import hosts, timing
from gnn_backend.bench.environment import device_report, document
from gnn_backend.datasets import RelationalData, load
from gnn_backend.errors import invalid
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.passes import NAMED, Options
from gnn_backend.layers.relational.models import MODELS, layer_arguments

#: Ours, by which optimizations are made.
VARIANTS = {
    "ours": NAMED["auto"],
    "ours, vanilla": NAMED["vanilla"],
    "ours, C": NAMED["c"],
    "ours, F": NAMED["f"],
    "ours, C+F": NAMED["cf"],
}
STOCK = {"rgcn": ("RGCNConv", "FastRGCNConv"), "rgat": ("RGATConv",), "hgt": ("HGTConv",)}
DGL = {"rgcn": "RelGraphConv", "hgt": "HGTConv"}
#: Graphs that are files, by the name of the file.
REAL = ("umls", "fb15k_237", "wn18rr", "wordnet30", "debian12_packages")
_INNER = 5
Step = Callable[[bool], None]  # runs forward, and backward if True


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run.

    Attributes
    ----------
    models : tuple of str
        Among ``STOCK``.
    width : int
        Of the features and of the result.
    heads : tuple of int
        Of the models with attention; RGCN has none and is measured once.
    repeats : int
        Samples; the median counts.
    stock : bool
        Whether the hosts' layers are measured too.
    device : str
        "cuda" or "cpu".
    """

    models: tuple[str, ...] = tuple(STOCK)
    width: int = 64
    heads: tuple[int, ...] = (1,)
    repeats: int = 5
    stock: bool = True
    device: str = "cuda"


def real_graphs(folder: Path | None) -> list[str]:
    """Paths of those of ``REAL`` that are in a folder."""
    files = [folder / f"{name}.npz" for name in REAL] if folder is not None else []
    return [str(file) for file in files if file.is_file()]


def run(
    graphs: Sequence[str],
    settings: Settings,
    say: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None] = lambda document: None,
) -> dict[str, Any]:
    """Measure every model on every graph.

    Parameters
    ----------
    graphs : list of str
        Names of ``datasets.RELATIONAL`` or files of typed graphs.
    settings : Settings
    say : callable
        Called with a line of progress.
    keep : callable, optional
        Called after each measurement with the document so far.

    Returns
    -------
    dict
        The JSON document that ``bench show`` reads; times in milliseconds, eager.
    """
    rows: list[dict[str, Any]] = []
    found = {**document("relational", asdict(settings), device_report()), "graphs": rows}
    for name in graphs:
        data = load(name, device=settings.device)
        if not isinstance(data, RelationalData):
            raise invalid("graph", "edges have no types", name, "a relational graph")
        graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
        relations = Relations(graph, data.edge_type, data.num_edge_types)
        for model in settings.models:
            for heads in settings.heads if model != "rgcn" else (1,):
                row = _row(data, model, heads)
                rows.append(row)
                for way, make in _ways(data, relations, model, heads, settings):
                    say(f"{data.name} {model}, {heads} heads: {way}")
                    row["ways"][way] = _measured(make, settings)
                    keep(found)
    return found


def _row(data: RelationalData, model: str, heads: int) -> dict[str, Any]:
    return {
        "graph": data.name,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "num_edge_types": data.num_edge_types,
        "model": model,
        "heads": heads,
        "ways": {},
    }


def _ways(
    data: RelationalData, relations: Relations, model: str, heads: int, settings: Settings
) -> Iterator[tuple[str, Callable[[], Step]]]:
    """What is measured, and what makes it: nothing of one is held while the next is."""
    for way, options in VARIANTS.items():
        yield way, lambda o=options: _ours(relations, model, heads, settings, o)  # type: ignore[misc]
    if settings.stock and hosts.installed("pyg"):
        for layer in STOCK[model]:
            yield f"PyG {layer}", lambda name=layer: _stock(data, name, heads, settings)  # type: ignore[misc]
    on_device = settings.device == "cpu" or hosts.dgl_has_cuda()
    if settings.stock and model in DGL and hosts.installed("dgl") and on_device:
        yield f"DGL {DGL[model]}", lambda: _stock_dgl(data, DGL[model], heads, settings)


def _measured(make: Callable[[], Step], settings: Settings) -> dict[str, Any]:
    """Inference and training times and the peak of training, or "out-of-memory"."""
    counts = (_INNER, settings.repeats, 1)
    try:
        step = make()
        step(True)  # compiles, and builds what the graph keeps
        return {
            "inference_ms": timing.eager_ms(lambda: step(False), settings.device, *counts),
            "training_ms": timing.eager_ms(lambda: step(True), settings.device, *counts),
            "peak_bytes": _peak_bytes(step, settings.device),
        }
    except (torch.cuda.OutOfMemoryError, MemoryError):
        return {"inference_ms": None, "training_ms": None, "peak_bytes": None}
    finally:
        gc.collect()
        if settings.device == "cuda":
            torch.cuda.empty_cache()


def _peak_bytes(step: Step, device: str) -> int | None:
    if device == "cuda":
        return memory.cuda_peak_bytes(lambda: step(True))
    return memory.resident_growth(lambda: step(True))


def _features(nodes: int, settings: Settings) -> Tensor:
    generator = torch.Generator(device=settings.device).manual_seed(0)
    shape = nodes, settings.width
    return torch.randn(shape, generator=generator, device=settings.device).requires_grad_()


def _ours(
    relations: Relations, model: str, heads: int, settings: Settings, options: Options
) -> Step:
    program = MODELS[model].optimised(options)
    shapes, constants = layer_arguments(model, relations, settings.width, settings.width, heads)
    tensors = {
        name: (torch.randn(shape, device=settings.device) / 8).requires_grad_()
        for name, shape in shapes.items()
        if name != "x"
    }
    tensors["x"] = _features(relations.graph.num_src, settings)

    def step(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            out = program(relations, **tensors, **constants)
        assert isinstance(out, Tensor)
        if backward:
            torch.autograd.grad(out, list(tensors.values()), torch.ones_like(out))

    return step


def _stock(data: RelationalData, layer: str, heads: int, settings: Settings) -> Step:
    _check_fits(data, layer, settings)
    x = _features(data.num_nodes, settings)
    width, types = settings.width, data.num_edge_types
    cls = hosts.layer_class("pyg", layer)
    arguments: tuple[Any, ...] = (x, data.edge_index, data.edge_type)
    if layer == "HGTConv":
        names = [("node", f"r{k}", "node") for k in range(types)]
        module = cls(width, width, (["node"], names), heads=heads)
        kinds = (data.edge_index[:, data.edge_type == k] for k in range(types))
        arguments = ({"node": x}, dict(zip(names, kinds, strict=True)))
    elif layer == "RGATConv":
        module = cls(width, width // heads, types, heads=heads, bias=False)
    else:
        module = cls(width, width, types, aggr="add", root_weight=False, bias=False)
    return _step(module.to(settings.device), x, arguments)


def _stock_dgl(data: RelationalData, layer: str, heads: int, settings: Settings) -> Step:
    import dgl

    x, width = _features(data.num_nodes, settings), settings.width
    graph = dgl.graph(tuple(data.edge_index), num_nodes=data.num_nodes)
    cls: Any = hosts.layer_class("dgl", layer)
    if layer == "HGTConv":
        module = cls(width, width // heads, heads, 1, data.num_edge_types)
        kinds = torch.zeros(data.num_nodes, dtype=torch.int64, device=settings.device)
        arguments: tuple[Any, ...] = (graph, x, kinds, data.edge_type)
    else:
        module = cls(width, width, data.num_edge_types, bias=False, self_loop=False)
        arguments = (graph, x, data.edge_type)
    return _step(module.to(settings.device), x, arguments)


def _check_fits(data: RelationalData, layer: str, settings: Settings) -> None:
    """Refuse what would bring a CPU's machine down: a GPU has its own error for that."""
    free = memory.available_bytes(settings.device) if settings.device == "cpu" else None
    copies = {"FastRGCNConv": 2, "RGATConv": 3}.get(layer, 0)  # of a weight for each edge
    needed = copies * data.num_edges * settings.width**2 * 4
    if free is not None and needed > free:
        raise MemoryError(f"{layer} needs about {needed / 2**30:.0f} GiB")


def _step(module: torch.nn.Module, x: Tensor, arguments: tuple[Any, ...]) -> Step:
    def step(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            out = module(*arguments)
        out = out["node"] if isinstance(out, dict) else out
        if backward:
            wanted = [x, *module.parameters()]
            torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)

    return step

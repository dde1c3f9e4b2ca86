"""The attention benchmark: the yardstick, this package, stock layers and rivals in one run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnn_backend import memory
from gnn_backend.bench import stock, timing, yardstick
from gnn_backend.bench.attention_operators import (
    OPERATORS,
    AttentionOperator,
    Inputs,
    Variant,
    edge_bytes,
    operator,
)
from gnn_backend.bench.environment import cpu_report, device_report, document
from gnn_backend.bench.hosts import Shape
from gnn_backend.bench.rivals import turbo_gnn
from gnn_backend.config import override
from gnn_backend.datasets import GraphData, load
from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.runtime import block_choice, block_sparse

_PASSES: dict[str, tuple[Direction, bool]] = {
    "forward": ("dst", False),
    "backward_dst": ("dst", True),
    "backward_src": ("src", True),
}
_COPIED_BYTES = 1 << 30
_LARGEST_VARIANT = 16 << 30  # bytes of a variant's edge tensors; larger ones are left out

#: By operator, what each ratio should not exceed in float32.
RATIO_LIMITS = {
    op.name: {
        "peak_over_io": 1.2,
        **{name: limit for name, (_, _, limit) in op.ratios().items() if limit},
    }
    for op in OPERATORS.values()
}
#: Over their own bytes or, for dropout, over the operator without.
VARIANT_LIMITS = {"dropout": 1.15, "edge_bias": 1.2, "edge_logit": 1.2, "edge_features": 1.2}


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run."""

    shape: Shape = field(default_factory=Shape)
    device: str = "cuda"
    dtypes: tuple[str, ...] = ("float32",)
    inner: int = timing.INNER
    repeats: int = timing.REPEATS
    force_stock: bool = False
    check_yardstick: Path | None = None
    operator: str = "gatv2"
    variants: bool = False

    @property
    def gpu(self) -> bool:
        """Whether the run is on a GPU: graph replay, the yardstick and rivals are measured."""
        return torch.device(self.device).type == "cuda"


def run(graphs: list[str], settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every graph in every dtype.

    Parameters
    ----------
    graphs : list of str
        Names of ``datasets.NAMED_GRAPHS`` or npz files.
    settings : Settings
    say : callable
        Called with a line of progress.

    Returns
    -------
    dict
        The JSON document that ``bench show`` reads; times in milliseconds, memory in bytes.
    """
    operator(settings.operator)
    rows = []
    for name in graphs:
        data = load(name, device=settings.device)
        for dtype in settings.dtypes:
            say(f"{name} {dtype}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
            rows.append(_row(name, data, dtype, settings))
            _release(settings)
    device = device_report() if settings.gpu else cpu_report()
    header = document("attention", asdict(settings), device)
    return {**header, "operator": settings.operator, "graphs": rows}


def _row(name: str, data: GraphData, dtype: str, settings: Settings) -> dict[str, Any]:
    kind, op = getattr(torch, dtype), operator(settings.operator)
    graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
    row: dict[str, Any] = {
        "graph": data.name,
        "dtype": dtype,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "max_in_degree": graph.stats("dst").maximum,
        "yardstick": None,
        "graph_build_ms": _build_ms(data, settings),
        "ours": _ours(op, graph, kind, settings),
    }
    row["graph_bytes"] = graph.nbytes()
    if settings.gpu:
        row["yardstick"] = _yardstick(graph, data, dtype, settings)
        if settings.variants:
            row["variants"] = _variants(op, graph, kind, row["ours"], settings)
            row["paths"] = _paths(op, graph, kind, settings)
        if op.name == "gatv2":
            inputs = _inputs(op, graph, kind, settings)
            row["turbo_gnn"] = turbo_gnn(graph, inputs, settings)
        del graph
        _release(settings)
        row["layers"] = stock.gpu_layers(op.layer, data, kind, settings)
    else:
        del graph
        row["layers"] = stock.cpu_layers(op.layer, name, dtype, settings)
    row["ratios"] = ratios(op, row)
    return row


def _inputs(
    op: AttentionOperator, graph: Graph, dtype: torch.dtype, settings: Settings,
    variant: Variant | None = None,
) -> Inputs:  # fmt: skip
    """Seeded operands, all wanting gradients; of a variant only what it adds."""
    generator = torch.Generator(device=settings.device).manual_seed(0)

    def draw(*size: int) -> Tensor:
        drawn = torch.randn(*size, generator=generator, device=settings.device)
        return drawn.to(dtype).requires_grad_()

    return (op if variant is None else variant).inputs(graph, settings.shape, draw)


def _ours(
    op: AttentionOperator, graph: Graph, dtype: torch.dtype, settings: Settings,
    variant: Variant | None = None,
) -> dict[str, Any]:  # fmt: skip
    inputs = _inputs(op, graph, dtype, settings)
    options: dict[str, Any] = {}
    if variant is not None:
        inputs |= _inputs(op, graph, dtype, settings, variant)
        options = dict(variant.options)

    def call() -> tuple[Tensor, ...]:
        result = op.call(graph, inputs, **options)
        return result if isinstance(result, tuple) else (result,)

    def forward() -> None:
        with torch.no_grad():
            call()

    leaves = list(inputs.values())
    cotangents = [torch.randn_like(out) for out in call()]

    def both() -> None:
        torch.autograd.grad(call(), leaves, cotangents)

    both()  # compiles, and builds all that the Graph builds on first use
    result = _timed("forward", forward, settings) | _timed("forward_backward", both, settings)
    if settings.gpu:
        held = sum(t.numel() * t.element_size() for t in (*leaves, *cotangents))
        result["io_bytes"] = 2 * held  # inputs and outputs, each with gradient
        base = torch.cuda.memory_allocated() - held
        result["peak_bytes"] = memory.cuda_peak_bytes(both, base)
    return result


def _variants(
    op: AttentionOperator, graph: Graph, dtype: torch.dtype, plain: dict[str, Any],
    settings: Settings,
) -> dict[str, Any]:  # fmt: skip
    """Variants of the operator, with edges as given and in CSR order: times and what they cost."""
    rate, found = _rate(settings), {}
    csr = graph.by_dst
    in_order = Graph.from_csr(csr.indptr, csr.indices, graph.num_src)
    for name, variant in op.variants.items():
        _release(settings)
        added = _inputs(op, graph, dtype, settings, variant)
        if sum(t.numel() * t.element_size() for t in added.values()) > _LARGEST_VARIANT:
            continue
        found[name] = _cost(op, graph, dtype, plain, settings, variant, added, rate)
        found[name]["csr_order"] = _cost(op, in_order, dtype, plain, settings, variant, added, rate)
        if added:
            found[name]["torch_gather_ms"] = _gather_ms(graph, added, settings)
    return found


def _gather_ms(graph: Graph, added: Inputs, settings: Settings) -> dict[str, float]:
    """What torch takes to gather the edge tensors of a variant once, and to scatter them back."""
    ids = graph.by_dst.edge_ids
    order = torch.arange(graph.num_edges, device=graph.device) if ids is None else ids.long()
    counts, found = (settings.inner, settings.repeats), {"gather": 0.0, "scatter": 0.0}
    for table in added.values():
        if len(table) != graph.num_edges:
            continue
        values, out = table.detach(), torch.empty_like(table, requires_grad=False)
        gather = partial(torch.index_select, values, 0, order, out=out)
        found["gather"] += timing.replay_ms(gather, *counts)
        found["scatter"] += timing.replay_ms(partial(out.index_copy_, 0, order, values), *counts)
    return found


def _cost(
    op: AttentionOperator, graph: Graph, dtype: torch.dtype, plain: dict[str, Any],
    settings: Settings, variant: Variant, added: Inputs, rate: float,
) -> dict[str, Any]:  # fmt: skip
    """Times of a variant; its ratios: what it takes more over own bytes, or its time over plain."""
    measured = _ours(op, graph, dtype, settings, variant)
    for timed in ("forward", "forward_backward"):
        size = edge_bytes(graph, added, timed == "forward_backward")
        key = f"{timed}_replay_ms"
        more = measured[key] - plain[key]
        ratio = more / (size / rate) if size else measured[key] / plain[key]
        measured[f"{timed}_ratio"] = round(ratio, 3)
        measured[f"{timed}_own_bytes"] = size
    return measured


def _paths(
    op: AttentionOperator, graph: Graph, dtype: torch.dtype, settings: Settings
) -> dict[str, Any]:
    """Times over rows and over tiles, and which each direction takes by itself; empty: no tiles."""
    shape = settings.shape
    if op.name != "dot" or block_sparse.cannot(dtype, shape.heads, shape.dim) is not None:
        return {}
    sizes = shape.heads, shape.dim
    found: dict[str, Any] = {
        "edges_per_tile": round(graph.block_stats("dst").edges_per_tile, 1),
        "tiles_chosen": {
            name: block_choice.prefers_tiles(graph, direction, dtype, *sizes, backward)
            for name, (direction, backward) in _PASSES.items()
        },
    }
    for path in ("rows", "tiles"):
        _release(settings)
        with override(attention_path=path):
            found[path] = _ours(op, graph, dtype, settings)
    return found


def _rate(settings: Settings) -> float:
    return timing.copy_rate(_COPIED_BYTES, settings.device, settings.inner, settings.repeats)


def _timed(name: str, call: Callable[[], None], settings: Settings) -> dict[str, float]:
    counts = settings.inner, settings.repeats
    times = {f"{name}_ms": timing.eager_ms(call, settings.device, *counts)}
    if settings.gpu:
        times[f"{name}_replay_ms"] = timing.replay_ms(call, *counts)
    return times


def _build_ms(data: GraphData, settings: Settings) -> float:
    """Wall-clock milliseconds to build both directions from the edge list, median of three."""

    def build() -> None:
        graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
        graph.by_src  # noqa: B018 - built on first use
        if settings.gpu:
            torch.cuda.synchronize()

    return timing.wall_ms(build, repeats=3)


def _yardstick(
    graph: Graph, data: GraphData, dtype: str, settings: Settings
) -> dict[str, Any] | None:
    width = settings.shape.heads * settings.shape.dim
    kind = getattr(torch, dtype)
    if not yardstick.supports(width, kind):
        return None
    measured = yardstick.measure(graph, width, kind, settings.inner, settings.repeats)
    if settings.check_yardstick is not None:
        measured["check"] = yardstick.check(settings.check_yardstick, measured, data, width, dtype)
    return measured


def ratios(op: AttentionOperator, row: dict[str, Any]) -> dict[str, float | None]:
    """What a row's figures come to; None where a part is missing or the yardstick is void."""
    ours, limit, layers = row["ours"], row.get("yardstick"), row["layers"]
    found: dict[str, float | None] = dict.fromkeys((*op.ratios(), "peak_over_io"))
    if limit is not None and not limit.get("check", {}).get("void", False):
        for name, (timed, (g1, g2), _) in op.ratios().items():
            base = g1 * limit["g1_ms"] + g2 * limit["g2_ms"]
            found[name] = ours[f"{timed}_replay_ms"] / base
    if "peak_bytes" in ours:
        found["peak_over_io"] = ours["peak_bytes"] / ours["io_bytes"]
    key = "forward_backward_ms"
    for rival in ("pyg", "dgl"):
        found[f"speedup_over_{rival}_layer"] = _quotient(
            layers.get(rival), layers.get(f"{rival}_accelerated"), key
        )
    if "turbo_gnn" in row:
        found["speedup_over_turbo_gnn"] = _quotient(row["turbo_gnn"], ours, key)
    return {name: None if value is None else round(value, 3) for name, value in found.items()}


def _quotient(rival: Any, ours: Any, key: str) -> float | None:
    """Rival's time over ours; None where either was not measured (a text says why)."""
    if not isinstance(rival, dict) or not isinstance(ours, dict):
        return None
    return float(rival[key] / ours[key]) if rival.get(key) and ours.get(key) else None


def _release(settings: Settings) -> None:
    gc.collect()
    if settings.gpu:
        torch.cuda.empty_cache()

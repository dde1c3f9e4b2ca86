"""The attention benchmark: the yardstick, this package, stock layers and rivals in one run."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnn_backend import memory
from gnn_backend.bench import stock, timing, yardstick
from gnn_backend.bench.environment import cpu_report, device_report, document
from gnn_backend.bench.hosts import Shape
from gnn_backend.bench.rivals import turbo_gnn
from gnn_backend.datasets import GraphData, load
from gnn_backend.graph import Graph

SLOPE = 0.2

#: What each checkpoint divides: kernel times by multiples of the yardstick's.
RATIO_LIMITS = {"forward_over_g1": 1.3, "forward_backward_over_2g1_g2": 1.3, "peak_over_io": 1.2}


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
    rows = []
    for name in graphs:
        data = load(name, device=settings.device)
        for dtype in settings.dtypes:
            say(f"{name} {dtype}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
            rows.append(_row(name, data, dtype, settings))
            _release(settings)
    device = device_report() if settings.gpu else cpu_report()
    header = document("attention", asdict(settings), device)
    return {**header, "operator": "gatv2", "graphs": rows}


def _row(name: str, data: GraphData, dtype: str, settings: Settings) -> dict[str, Any]:
    kind = getattr(torch, dtype)
    graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
    row: dict[str, Any] = {
        "graph": data.name,
        "dtype": dtype,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "max_in_degree": graph.stats("dst").maximum,
        "yardstick": None,
        "graph_build_ms": _build_ms(data, settings),
        "ours": _ours(graph, kind, settings),
    }
    row["graph_bytes"] = graph.nbytes()
    if settings.gpu:
        row["yardstick"] = _yardstick(graph, data, dtype, settings)
        row["turbo_gnn"] = turbo_gnn(graph, _operands(graph, kind, settings), settings)
        del graph
        _release(settings)
        row["layers"] = stock.gpu_layers(data, kind, settings)
    else:
        del graph
        row["layers"] = stock.cpu_layers(name, dtype, settings)
    row["ratios"] = ratios(row)
    return row


def _operands(
    graph: Graph, dtype: torch.dtype, settings: Settings
) -> tuple[Tensor, Tensor, Tensor]:
    """Seeded x_src [Ns, H, D], x_dst [Nd, H, D] and att [H, D], all wanting gradients."""
    shape, device = settings.shape, settings.device
    generator = torch.Generator(device=device).manual_seed(0)

    def draw(*size: int) -> Tensor:
        drawn = torch.randn(*size, generator=generator, device=device)
        return drawn.to(dtype).requires_grad_()

    rows = (graph.num_src, shape.heads, shape.dim), (graph.num_dst, shape.heads, shape.dim)
    return draw(*rows[0]), draw(*rows[1]), draw(shape.heads, shape.dim)


def _ours(graph: Graph, dtype: torch.dtype, settings: Settings) -> dict[str, Any]:
    from gnn_backend.ops.attention import gatv2_attention

    x_src, x_dst, att = _operands(graph, dtype, settings)

    def forward() -> None:
        with torch.no_grad():
            gatv2_attention(graph, x_src, x_dst, att, negative_slope=SLOPE)

    cotangent = torch.randn_like(x_dst)

    def both() -> None:
        out = gatv2_attention(graph, x_src, x_dst, att, negative_slope=SLOPE)
        torch.autograd.grad(out, (x_src, x_dst, att), cotangent)

    both()  # compiles, and builds all that the Graph builds on first use
    result = _timed("forward", forward, settings) | _timed("forward_backward", both, settings)
    if settings.gpu:
        tensors = (x_src, x_dst, att, cotangent)
        held = sum(t.numel() * t.element_size() for t in tensors)
        result["io_bytes"] = 2 * held  # inputs and output (as large as x_dst), each with gradient
        base = torch.cuda.memory_allocated() - held
        result["peak_bytes"] = memory.cuda_peak_bytes(both, base)
    return result


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


def ratios(row: dict[str, Any]) -> dict[str, float | None]:
    """What a row's figures come to; None where a part is missing or the yardstick is void."""
    ours, limit, layers = row["ours"], row.get("yardstick"), row["layers"]
    found: dict[str, float | None] = dict.fromkeys(RATIO_LIMITS)
    if limit is not None and not limit.get("check", {}).get("void", False):
        g1, g2 = limit["g1_ms"], limit["g2_ms"]
        found["forward_over_g1"] = ours["forward_replay_ms"] / g1
        both = ours["forward_backward_replay_ms"]
        found["forward_backward_over_2g1_g2"] = both / (2 * g1 + g2)
    if "peak_bytes" in ours:
        found["peak_over_io"] = ours["peak_bytes"] / ours["io_bytes"]
    key = "forward_backward_ms"
    for rival in ("pyg", "dgl"):
        found[f"speedup_over_{rival}_layer"] = _quotient(
            layers.get(rival), layers.get(f"{rival}_accelerated"), key
        )
    found["speedup_over_turbo_gnn"] = _quotient(row.get("turbo_gnn"), ours, key)
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

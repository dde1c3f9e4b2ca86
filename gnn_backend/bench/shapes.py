"""Attention operators over many head counts and widths: a table of ratios to the yardstick."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gnn_backend.bench import timing, yardstick
from gnn_backend.bench.attention_operators import AttentionOperator, operator
from gnn_backend.bench.environment import device_report, document
from gnn_backend.bench.hosts import Shape
from gnn_backend.datasets import GraphData, load
from gnn_backend.graph import Graph

HEADS = (1, 2, 4, 8)
DIMS = (7, 16, 32, 33, 64, 127, 128, 256)


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run."""

    operators: tuple[str, ...] = ("gatv2", "gat", "dot")
    heads: tuple[int, ...] = HEADS
    dims: tuple[int, ...] = DIMS
    dtype: str = "float32"
    device: str = "cuda"
    inner: int = 5
    repeats: int = 3


def run(graphs: list[str], settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every operator at every shape on every graph.

    Returns
    -------
    dict
        The JSON document that ``bench show`` reads; times in milliseconds by graph replay. The
        yardstick of a width that it has no kernel for is that of the next one, scaled by the
        bytes of a row.
    """
    rows = []
    for name in graphs:
        data = load(name, device=settings.device)
        graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
        limits: dict[int, dict[str, float]] = {}
        for op in map(operator, settings.operators):
            say(f"{name} {op.name}: {len(settings.heads) * len(settings.dims)} shapes")
            for heads in settings.heads:
                for dim in settings.dims:
                    limit = _limit(graph, heads * dim, settings, limits)
                    rows.append(_row(op, data, graph, heads, dim, limit, settings))
                    gc.collect()
    return {**document("shapes", asdict(settings), device_report()), "shapes": rows}


def _row(
    op: AttentionOperator, data: GraphData, graph: Graph, heads: int, dim: int,
    limit: dict[str, float], settings: Settings,
) -> dict[str, Any]:  # fmt: skip
    generator = torch.Generator(device=settings.device).manual_seed(0)
    kind = getattr(torch, settings.dtype)

    def draw(*size: int) -> torch.Tensor:
        drawn = torch.randn(*size, generator=generator, device=settings.device)
        return drawn.to(kind).requires_grad_()

    inputs = op.inputs(graph, Shape(dim=dim, heads=heads), draw)
    leaves = list(inputs.values())
    cotangent = torch.randn_like(op.call(graph, inputs))

    def forward() -> None:
        with torch.no_grad():
            op.call(graph, inputs)

    def both() -> None:
        torch.autograd.grad(op.call(graph, inputs), leaves, cotangent)

    both()  # compiles, and builds what the graph builds on first use
    row = {"graph": data.name, "operator": op.name, "heads": heads, "dim": dim}
    calls = {"forward": forward, "forward_backward": both}
    for name, (timed, (g1, g2), _) in op.ratios().items():
        time = timing.replay_ms(calls[timed], settings.inner, settings.repeats)
        base = g1 * limit["g1_ms"] + g2 * limit["g2_ms"]
        row |= {f"{timed}_ms": time, name: round(time / base, 3)}
    return row


def _limit(
    graph: Graph, width: int, settings: Settings, known: dict[int, dict[str, float]]
) -> dict[str, float]:
    """g1 and g2 of rows of ``width`` values."""
    fitting = [w for w in yardstick.WIDTHS if w >= width] or yardstick.WIDTHS[-1:]
    at = fitting[0]
    if at not in known:
        kind = getattr(torch, settings.dtype)
        known[at] = yardstick.measure(graph, at, kind, settings.inner, settings.repeats)
    return {name: known[at][name] * width / at for name in ("g1_ms", "g2_ms")}


def medians(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By operator, the median of each ratio over all shapes and graphs."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["operator"] for row in rows):
        own = [row for row in rows if row["operator"] == name]
        found[name] = {
            ratio: round(statistics.median(row[ratio] for row in own), 3)
            for ratio in operator(name).ratios()
        }
    return found

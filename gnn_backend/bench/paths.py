"""Every path and task length that a reduction could take, timed on a GPU in one run.

What the choice is fitted to (``bench fit``) and judged by (``bench regret``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from gnn_backend.bench import timing
from gnn_backend.bench.environment import device_report, document
from gnn_backend.bench.operators import release
from gnn_backend.datasets import load
from gnn_backend.graph import Graph
from gnn_backend.graph.graph import Direction
from gnn_backend.runtime.aggregation import Message
from gnn_backend.runtime.launch import aggregation_engine
from gnn_backend.runtime.sparse import cusparse, linear_aggregation, selection
from gnn_backend.runtime.sparse.aggregation import DeviceAggregation
from gnn_backend.runtime.sparse.model import CUSPARSE, ROWS
from gnn_backend.runtime.sparse.selection import Choice, Form


class Case(NamedTuple):
    """A pass: reductions, whether edges have weights, and whose rows it goes over."""

    reductions: tuple[str, ...]
    weighted: bool = False
    direction: Direction = "dst"

    @property
    def family(self) -> str:
        """The family that it is chosen with."""
        return selection.family_of(self.reductions, int(self.weighted))


CASES = {
    "sum": Case(("sum",)),
    "sum by source": Case(("sum",), direction="src"),
    "sum weighted": Case(("sum",), True),
    "max": Case(("max",)),
    "mean, max, min, std": Case(("mean", "max", "min", "std")),
}


@dataclass(frozen=True)
class Settings:
    """Sizes of a run."""

    widths: tuple[int, ...] = (64, 128, 256, 512)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    device: str = "cuda"


def run(graphs: list[str], settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Time every choice on every graph.

    Parameters
    ----------
    graphs : list of str
        Names of ``datasets.NAMED_GRAPHS`` and the like, or npz files.
    settings : Settings
    say : callable
        Called with a line of progress.

    Returns
    -------
    dict
        The JSON document; ``times`` are milliseconds by case and choice, None out of memory.
    """
    rows = []
    for name in graphs:
        data = load(name, device=settings.device)
        graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
        directions: tuple[Direction, Direction] = ("dst", "src")
        # As the choice sees them: before any are built.
        tiles = {d: graph.block_stats(d).num_tiles for d in directions}
        for dtype in settings.dtypes:
            for width in settings.widths:
                say(f"{name} {dtype} {width}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
                times = _times(graph, getattr(torch, dtype), width)
                rows.append({
                    "graph": data.name, "dtype": dtype, "width": width,
                    "num_nodes": data.num_nodes, "num_edges": data.num_edges,
                    "max_in_degree": graph.stats("dst").maximum, "tiles": tiles, "times": times,
                })  # fmt: skip
                graph.plans.clear()
                release(settings.device)
        graph.clear()
    return {**document("paths", asdict(settings), device_report()), "graphs": rows}


def _times(graph: Graph, kind: torch.dtype, width: int) -> dict[str, dict[str, float | None]]:
    generator = torch.Generator(device=graph.device).manual_seed(0)
    x = torch.randn(graph.num_src, 1, width, generator=generator, device=graph.device).to(kind)
    weights = torch.rand(graph.num_edges, generator=generator, device=graph.device).to(kind)
    engine = aggregation_engine(x.device, kind)
    assert isinstance(engine, DeviceAggregation)
    found: dict[str, dict[str, float | None]] = {}
    for name, case in CASES.items():
        message = Message("mul" if case.weighted else "copy", x, weights if case.weighted else None)
        form = Form(case.family, ", ".join(case.reductions), kind, 1, width, int(case.weighted))
        call = _call(engine, graph, message, case)
        if not found and graph.device.type == "cuda":
            timing.settle(call)
        found[name] = {}
        for choice in selection.candidates(graph, form):
            selection.keep(graph, case.direction, form, choice)
            found[name][name_of(choice)] = _time(call)
        if selection.cannot(graph, CUSPARSE, form) is None:  # shown, never chosen unasked
            flat = x.view(-1, width)
            product = partial(cusparse.product, graph, case.direction, flat, message.edge)
            found[name][CUSPARSE] = _time(product)
    return found


def name_of(choice: Choice) -> str:
    """A choice's name in results."""
    return f"rows {choice.chunk}" if choice.path == ROWS else choice.path


def _call(
    engine: DeviceAggregation, graph: Graph, message: Message, case: Case
) -> Callable[[], Any]:
    if case.direction == "src":
        return lambda: linear_aggregation.backward_x(engine.engine, graph, message, message.x)
    rules: dict[str, Any] = {"first": False, "nan_wins": True, "temperature": None, "save": False}
    return lambda: engine.aggregate_forward(graph, message, case.reductions, **rules)


def _time(call: Callable[[], Any]) -> float | None:
    """Milliseconds of a replay; None where there is not enough memory."""
    try:
        return timing.brief_ms(call)
    except torch.cuda.OutOfMemoryError:
        return None

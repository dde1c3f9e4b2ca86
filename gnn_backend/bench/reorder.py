"""The study of reordering: each order of the rows, timed on each operator and mapping.

Beside the orders of ``Graph.reorder`` a graph is renumbered by its communities and its edges are
sorted: what moving the tables as well would give, were it free, with what it costs beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_backend.bench import timing
from gnn_backend.bench.environment import cpu_report, device_report, document
from gnn_backend.bench.operators import release
from gnn_backend.config import override
from gnn_backend.datasets import load
from gnn_backend.graph import Graph
from gnn_backend.graph.locality import Locality, by_length, sample_locality
from gnn_backend.graph.reorder import METHODS
from gnn_backend.ops import aggregate
from gnn_backend.ops.attention import gatv2_attention
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.runtime.launch import engine_for
from gnn_backend.runtime.plan import Plan, plan_key
from gnn_backend.runtime.reorder_choice import predicted_gain
from gnn_backend.runtime.reordering import caches_of
from gnn_backend.runtime.selection import CHUNKS, DTYPE_NAMES, FEATURES, MAPPINGS, NEIGHBOURS
from gnn_backend.runtime.sparse.layout import columns_for

NONE, MOVED = "none", "renumbered"
REDUCTIONS = ("sum", "max")
_LARGE = 20_000_000  # edges, from which samples are few and SciPy takes too long


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run.

    Attributes
    ----------
    widths : tuple of int
        Values a row of sums and maxima: in float32 rows of 64 leave a warp of a GPU room for two
        tasks (neighbour-parallel), rows of 128 fill it (feature-parallel).
    heads, dim : int
        Of attention, which is measured in both mappings on a GPU.
    """

    device: str = "cuda"
    dtype: str = "float32"
    widths: tuple[int, ...] = (64, 128)
    heads: int = 2
    dim: int = 64
    inner: int = timing.INNER
    repeats: int = timing.REPEATS

    @property
    def kind(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def samples(self, num_edges: int) -> tuple[int, int]:
        """Calls a sample, and samples."""
        return (2, min(5, self.repeats)) if num_edges >= _LARGE else (self.inner, self.repeats)


def run(graphs: list[str], settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every order of every graph.

    Parameters
    ----------
    graphs : list of str
        Names that ``datasets.load`` takes.
    settings : Settings
    say : callable
        Called with a line of progress.

    Returns
    -------
    dict
        The JSON document that ``bench show`` reads; times of calls in milliseconds.
    """
    rows = []
    for name in graphs:
        data = load(name, device=settings.device)
        say(f"{data.name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
        rows.append(_row(data.name, data.edge_index, data.num_nodes, settings, say))
        release(settings.device)
    report = device_report() if settings.device == "cuda" else cpu_report()
    return {**document("reorder", asdict(settings), report), "graphs": rows}


def _row(
    name: str, edges: Tensor, count: int, settings: Settings, say: Callable[[str], None]
) -> dict[str, Any]:
    graph = Graph.from_edge_index(edges, count, count)
    first = None  # the order that rows are taken in without any
    if settings.device == "cuda":
        first = by_length(graph.by_dst.indptr.diff(), CHUNKS[-1])
    before, stats = sample_locality(graph.by_dst, count, first), graph.stats("dst")
    orders: dict[str, Any] = {NONE: {"seconds": 0.0, **_measured(graph, before, before, settings)}}
    moved = None
    for method in METHODS:
        if method == "rcm" and graph.num_edges >= _LARGE:
            continue
        order, orders[method] = _ordered(graph, method, before, settings)
        say(f"  {method}: {orders[method]['seconds']:.2f} s")
        moved = order if method == "community" else moved
        graph.clear()
        release(settings.device)
    assert moved is not None
    orders[MOVED] = _renumbered(edges, moved, before, settings)
    return {
        "graph": name,
        "num_nodes": count,
        "num_edges": graph.num_edges,
        "mean_in_degree": stats.mean,
        "max_in_degree": stats.maximum,
        "orders": orders,
    }


def _ordered(
    graph: Graph, method: str, before: Locality, settings: Settings
) -> tuple[Tensor, dict[str, Any]]:
    """An order of the rows by destination, int64, and its figures."""
    graph.by_src  # noqa: B018  (not a part of what is timed)
    if settings.device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    ordered = graph.reorder(method)
    if settings.device == "cuda":
        torch.cuda.synchronize()
    seconds = round(time.perf_counter() - start, 4)
    assert ordered.order is not None
    rows = ordered.order.dst
    after = sample_locality(graph.by_dst, graph.num_src, rows)
    return rows.long(), {"seconds": seconds, **_measured(ordered, before, after, settings)}


def _renumbered(
    edges: Tensor, order: Tensor, before: Locality, settings: Settings
) -> dict[str, Any]:
    """The graph with other numbers, and the time of a gather of a table and a scatter of a result.

    Rows are then taken by number: the longest first would undo the order.
    """
    count = order.numel()
    place = torch.empty_like(order)
    place[order] = torch.arange(count, device=order.device)
    src, dst = place[edges]
    by_source = torch.argsort(src, stable=True)
    graph = Graph.from_edge_index(torch.stack([src[by_source], dst[by_source]]), count, count)
    graph = graph.reorder("natural")
    after = sample_locality(graph.by_dst, count)
    table = _draw(count, settings.heads * settings.dim, settings=settings)
    moving = {
        "gather": _ms(lambda: table.index_select(0, order), edges.shape[1], settings),
        "scatter": _ms(
            lambda: torch.empty_like(table).index_copy_(0, order, table), edges.shape[1], settings
        ),
    }
    return {"seconds": None, "moving_ms": moving, **_measured(graph, before, after, settings)}


def _measured(
    graph: Graph, before: Locality, after: Locality, settings: Settings
) -> dict[str, Any]:
    on_gpu = settings.device == "cuda"
    caches = caches_of(torch.device("cuda")) if on_gpu else None
    found: dict[str, Any] = {}
    with override(reorder="none", autotune=False, aggregation_path="rows"):
        for name, row_bytes, call in _cases(graph, settings):
            call()  # compiles, and builds what the graph builds on first use
            time_ms = _ms(call, graph.num_edges, settings)
            gain = None if caches is None else predicted_gain(before, after, row_bytes, caches)
            found[name] = {"ms": time_ms, "row_bytes": row_bytes, "predicted_gain": gain}
    return {"locality": after.windows, "cases": found}


def _cases(
    graph: Graph, settings: Settings
) -> Iterator[tuple[str, int, Callable[[], Any]]]:  # fmt: skip
    """Name, bytes of a neighbour's row, and the call."""
    size = settings.kind.itemsize
    for width in settings.widths:
        x, mapping = _draw(graph.num_src, width, settings=settings), _mapping(width, settings)
        for reduce in REDUCTIONS:
            title = f"{reduce}, width {width}{mapping}"
            yield title, width * size, lambda x=x, r=reduce: aggregate(graph, x, r)  # type: ignore[misc]
    shape = settings.heads, settings.dim
    x_src = _draw(graph.num_src, *shape, settings=settings).requires_grad_()
    att = _draw(*shape, settings=settings).requires_grad_()
    cotangent = _draw(graph.num_dst, *shape, settings=settings)

    def forward() -> None:
        with torch.no_grad():
            gatv2_attention(graph, x_src, x_src, att)

    def both() -> None:
        torch.autograd.grad(gatv2_attention(graph, x_src, x_src, att), [x_src, att], cotangent)

    row_bytes = settings.heads * settings.dim * size
    for mapping in _mappings(settings):
        if mapping:
            _take(graph, mapping, settings)
        suffix = f", {mapping}" if mapping else ""
        yield f"attention{suffix}", row_bytes, forward
        yield f"attention, forward+backward{suffix}", row_bytes, both


def _mapping(width: int, settings: Settings) -> str:
    if settings.device != "cuda":
        return ""
    tasks = columns_for(DTYPE_NAMES[settings.kind], width, ("row", "none"), 1).tasks
    return f", {NEIGHBOURS if tasks > 1 else FEATURES}"


def _mappings(settings: Settings) -> tuple[str, ...]:
    return MAPPINGS if settings.device == "cuda" else ("",)


def _take(graph: Graph, mapping: str, settings: Settings) -> None:
    """Have the graph's calls of attention use a mapping."""
    engine: Any = engine_for(torch.device(settings.device), settings.kind)
    form = settings.kind, settings.heads, settings.dim, engine.multiprocessors
    functor = FUNCTORS["gatv2"]
    graph.plans[plan_key(functor, *form)] = Plan(functor, graph, *form, mapping=mapping)


def _draw(*shape: int, settings: Settings) -> Tensor:
    generator = torch.Generator(device=settings.device).manual_seed(0)
    drawn = torch.randn(*shape, generator=generator, device=settings.device)
    return drawn.to(settings.kind)


def _ms(call: Callable[[], Any], num_edges: int, settings: Settings) -> float:
    inner, repeats = settings.samples(num_edges)
    if settings.device != "cuda":
        return timing.eager_ms(call, settings.device, inner, repeats, warmup=1)
    return timing.replay_ms(call, inner, repeats)


def summary(row: dict[str, Any]) -> list[dict[str, Any]]:
    """For each case of a graph: the fastest order, the predicted one, and the regret of that.

    Returns
    -------
    list of dict
        ``case``; ``best`` and ``gain``: order and how many times as fast as none; ``chosen``: what
        the model would take, of all orders that were measured; ``regret``: how much longer that
        takes than the best, as a share. Without predictions ``chosen`` and ``regret`` are None.
    """
    from gnn_backend.runtime.reorder_choice import MARGIN

    orders = {name: order["cases"] for name, order in row["orders"].items() if name != MOVED}
    found = []
    for case, plain in orders[NONE].items():
        times = {name: cases[case]["ms"] for name, cases in orders.items()}
        best = min(times, key=times.__getitem__)
        gains = {name: cases[case]["predicted_gain"] for name, cases in orders.items()}
        chosen = regret = None
        if plain["predicted_gain"] is not None:
            most = max(gains, key=gains.__getitem__)
            chosen = most if gains[most] > MARGIN else NONE
            regret = times[chosen] / times[best] - 1
        found.append(
            {"case": case, "best": best, "gain": times[NONE] / times[best], "chosen": chosen,
             "regret": regret}
        )  # fmt: skip
    return found

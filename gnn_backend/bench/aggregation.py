"""The benchmark of aggregation: the yardstick, this package and stock torch in one run, on a GPU.

Forward passes are compared with g1, the yardstick's gather-and-sum of one row an edge, backward
passes with the time that their own bytes take at the rate of a plain copy and with g1 or g2 (two
rows an edge) of the graph with its edges turned round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnn_backend.bench import timing, yardstick
from gnn_backend.bench.environment import device_report, document
from gnn_backend.bench.operators import cusparse_ms, release
from gnn_backend.datasets import GraphData, load
from gnn_backend.graph import Graph
from gnn_backend.graph.build import expand_rows
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.profile import profile
from gnn_backend.runtime.aggregation import Message
from gnn_backend.runtime.launch import aggregation_engine

PNA = ("mean", "max", "min", "std")
#: What the time may be, over g1 (forward) or over the time of the pass's own bytes (backward).
LIMITS = {
    "sum": 1.1,
    "mean": 1.1,
    "sum weighted": 1.2,
    "max": 1.2,
    "min": 1.2,
    "mean, max, min, std": 1.4,
    "max, backward": 1.2,
    "max first, backward": 1.2,
}
_COPIED_BYTES = 1 << 30


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run.

    Attributes
    ----------
    family : {"reduce", "spmm"}
    widths : tuple of int
        Values a row.
    check_yardstick : Path, optional
        As for ``bench attention``.
    """

    family: str = "reduce"
    widths: tuple[int, ...] = (64, 128, 256, 512)
    device: str = "cuda"
    dtypes: tuple[str, ...] = ("float32",)
    inner: int = timing.INNER
    repeats: int = timing.REPEATS
    check_yardstick: Path | None = None


@dataclass(frozen=True)
class Case:
    """One pass.

    Attributes
    ----------
    name : str
    make : callable
        Gives the call that is timed; what it holds is freed before the next case.
    rows : int
        Rows that an edge reads.
    node_rows : int
        Rows of nodes that are read or written in order.
    edge_values : int
        Values of its own that an edge reads or writes.
    backward : bool
        By source, so that the yardstick of the reversed graph is what it is compared with.
    """

    name: str
    make: Callable[[], Callable[[], Any]]
    rows: int = 1
    node_rows: int = 1
    edge_values: int = 0
    backward: bool = False


def run(graphs: list[str], settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every graph in every dtype at every width.

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
        The JSON document that ``bench show`` reads; times in milliseconds.
    """
    rows = []
    for name in graphs:
        data = load(name, device=settings.device)
        graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
        for dtype in settings.dtypes:
            rate = timing.copy_rate(
                _COPIED_BYTES, settings.device, settings.inner, settings.repeats
            )
            for width in settings.widths:
                say(f"{name} {dtype} {width}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
                rows.append(_row(data, graph, dtype, width, rate, settings))
                graph.plans.clear()
                release(settings.device)
    return {**document(settings.family, asdict(settings), device_report()), "graphs": rows}


def _row(
    data: GraphData, graph: Graph, dtype: str, width: int, rate: float, settings: Settings
) -> dict[str, Any]:
    kind = getattr(torch, dtype)
    limits: dict[str, Any] = {"dst": None, "src": None}
    if yardstick.supports(width, kind):
        sides = {"dst": graph, "src": graph.reversed()}
        for side, own in sides.items():
            limits[side] = yardstick.measure(own, width, kind, settings.inner, settings.repeats)
            release(settings.device)
        if settings.check_yardstick is not None:
            checked = yardstick.check(settings.check_yardstick, limits["dst"], data, width, dtype)
            limits["dst"]["check"] = checked
    make_cases = {"reduce": _reductions, "spmm": _products}[settings.family]
    measured = {}
    for case in make_cases(graph, kind, width, settings.device):
        measured[case.name] = _measured(case, graph, kind, width, limits, rate, settings)
        release(settings.device)
    return {
        "graph": data.name,
        "dtype": dtype,
        "width": width,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "max_in_degree": graph.stats("dst").maximum,
        "yardstick": limits["dst"],
        "yardstick_by_source": limits["src"],
        "copy_bytes_a_ms": rate,
        "operators": measured,
        "stock": _stock(graph, kind, width, settings),
    }


def _operand(graph: Graph, width: int, kind: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator(device=device).manual_seed(0)
    return torch.randn(graph.num_src, width, generator=generator, device=device).to(kind)


def _weights(graph: Graph, kind: torch.dtype, device: str) -> Tensor:
    generator = torch.Generator(device=device).manual_seed(1)
    return torch.rand(graph.num_edges, generator=generator, device=device).to(kind)


def _forward(
    graph: Graph, x: Tensor, reduce: str | tuple[str, ...], edge: Tensor | None = None,
    ties: str | None = None,
) -> Callable[[], Any]:  # fmt: skip
    """A forward pass; with ``ties`` one that keeps what backward wants."""
    message = "copy" if edge is None else "mul"
    leaf = x.detach().requires_grad_(ties is not None)
    return lambda: aggregate(graph, leaf, reduce, edge=edge, message=message, ties=ties or "even")


def _backward(
    graph: Graph, x: Tensor, wanted: tuple[str, ...], edge: Tensor | None = None,
    first: bool = False, needs_edge: bool = False,
) -> Callable[[], Any]:  # fmt: skip
    """The backward pass alone, on what a forward pass left."""
    engine = aggregation_engine(x.device, x.dtype)
    message = Message("copy" if edge is None else "mul", x.unsqueeze(1), edge)
    rules: dict[str, Any] = {"first": first, "nan_wins": True, "temperature": None}
    forward = engine.aggregate_forward(graph, message, wanted, **rules, save=True)
    grads = {name: torch.randn_like(value) for name, value in forward.values.items()}
    return lambda: engine.aggregate_backward(
        graph, message, forward, grads, **rules, needs_x=not needs_edge, needs_edge=needs_edge
    )


def _reductions(graph: Graph, kind: torch.dtype, width: int, device: str) -> Iterator[Case]:
    x = _operand(graph, width, kind, device)
    title = ", ".join(PNA)
    for name in ("sum", "mean", "max", "min", "std", "mul", "softmax"):
        yield Case(name, partial(_forward, graph, x, name))
    yield Case(title, partial(_forward, graph, x, PNA), node_rows=4)
    for ties, suffix in (("even", ""), ("first", " first")):
        forward, backward = (
            partial(_forward, graph, x, ties=ties),
            partial(_backward, graph, x, first=ties == "first"),
        )
        yield Case(f"max{suffix}, keeping", partial(forward, "max"), node_rows=2)
        yield Case(f"max{suffix}, backward", partial(backward, ("max",)), 2, 5, backward=True)
        yield Case(f"{title}{suffix}, keeping", partial(forward, PNA), node_rows=7)
        yield Case(f"{title}{suffix}, backward", partial(backward, PNA), 6, 14, backward=True)


def _products(graph: Graph, kind: torch.dtype, width: int, device: str) -> Iterator[Case]:
    x, weights = _operand(graph, width, kind, device), _weights(graph, kind, device)
    csr = graph.by_dst
    in_order = Graph.from_csr(csr.indptr, csr.indices, graph.num_src)
    for name in ("sum", "mean"):
        yield Case(name, partial(_forward, graph, x, name))
        yield Case(f"{name}, backward", partial(_backward, graph, x, (name,)), backward=True)
    for suffix, own in (("", graph), (", CSR order", in_order)):
        title, backward = f"sum weighted{suffix}", partial(_backward, own, x, ("sum",), weights)
        yield Case(title, partial(_forward, own, x, "sum", weights), edge_values=1)
        yield Case(f"{title}, backward", backward, edge_values=1, backward=True)
        to_weights = partial(backward, needs_edge=True)
        yield Case(f"{title}, backward to the weights", to_weights, edge_values=1)


def _measured(
    case: Case, graph: Graph, kind: torch.dtype, width: int, limits: dict[str, Any], rate: float,
    settings: Settings,
) -> dict[str, Any]:  # fmt: skip
    row, nodes = width * kind.itemsize, max(graph.num_src, graph.num_dst)
    ids = 0 if case.edge_values == 0 or graph.by_dst.edge_ids is None else 4
    per_edge = 4 + ids + case.rows * row + case.edge_values * kind.itemsize
    num_bytes = graph.num_edges * per_edge + case.node_rows * nodes * row
    try:
        call = case.make()
        with profile() as record:
            call()  # compiles, and builds what the graph builds on first use
        release(settings.device)
        time = timing.replay_ms(call, settings.inner, settings.repeats)
        eager = timing.eager_ms(call, settings.device, settings.inner, settings.repeats)
    except torch.cuda.OutOfMemoryError:
        return {"ms": None, "eager_ms": None, "bytes": num_bytes, "ratio": None,
                "over_bytes": None, "launches": None}  # fmt: skip
    limit = limits["src" if case.backward else "dst"]
    void = limits["dst"] is not None and limits["dst"].get("check", {}).get("void", False)
    base = 0.0 if limit is None or void else limit["g1_ms" if case.rows == 1 else "g2_ms"]
    return {
        "ms": time,
        "eager_ms": eager,
        "bytes": num_bytes,
        "against": ("g1" if case.rows == 1 else "g2") + (" by source" if case.backward else ""),
        "ratio": round(time / base, 3) if base else None,
        "over_bytes": round(time * rate / num_bytes, 3),
        "launches": sum(record.launches.values()),
    }


def _stock(
    graph: Graph, kind: torch.dtype, width: int, settings: Settings
) -> dict[str, float | str]:
    """Eager milliseconds of torch's own operators; a text says why there are none."""
    device, repeats = settings.device, settings.repeats
    found: dict[str, float | str] = {
        "cuSPARSE sum": cusparse_ms(graph, kind, width, device, repeats)
    }
    x = _operand(graph, width, kind, device)
    source = graph.by_dst.indices.long()
    row = expand_rows(graph.by_dst.indptr, graph.num_edges).long()
    zeros = x.new_zeros(graph.num_dst, width)
    index = row[:, None].expand(-1, width)

    def scattered(reduce: str) -> Callable[[], Any]:
        return lambda: zeros.scatter_reduce(0, index, x[source], reduce, include_self=False)

    calls: dict[str, Callable[[], Any]] = {
        "scatter_add": lambda: zeros.index_add(0, row, x[source])
    }
    if settings.family == "reduce":
        calls |= {
            "scatter_reduce amax": scattered("amax"),
            "scatter_reduce mean": scattered("mean"),
        }
    else:
        weights = _weights(graph, kind, device)[:, None]
        calls["weighted scatter_add"] = lambda: zeros.index_add(0, row, x[source] * weights)
    for name, call in calls.items():
        release(device)
        try:
            found[name] = timing.eager_ms(call, device, 1, min(3, repeats), warmup=1)
        except torch.cuda.OutOfMemoryError:
            found[name] = "out of memory"
        except RuntimeError as error:
            found[name] = str(error).splitlines()[0]
    return found

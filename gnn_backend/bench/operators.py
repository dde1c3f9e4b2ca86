"""The benchmark of the sparse operators: the yardstick and every operator in one run, on a GPU.

Node-wise results are compared with g1, the yardstick's gather-and-sum of one row an edge. Edge-wise
results are compared with the time that their own bytes take at the rate of a plain copy.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnn_backend.bench import dgl_graphs, timing, yardstick
from gnn_backend.bench.environment import device_report, document
from gnn_backend.datasets import GraphData, load
from gnn_backend.graph import Graph
from gnn_backend.ops.edge_softmax import edge_softmax, edge_softmax_backward
from gnn_backend.ops.edgewise import gsddmm
from gnn_backend.ops.spmm import gspmm
from gnn_backend.profile import profile

#: What a ratio may be: to g1, or to the time of the operator's own bytes.
LIMITS = {
    "copy_u_sum": 1.1,
    "copy_u_mean": 1.1,
    "u_mul_e_sum": 1.3,
    "u_mul_e_heads_sum": 1.3,
    "copy_u_max": 1.2,
    "u_add_v": 1.3,
    "u_dot_v": 1.3,
    "edge_softmax": 1.3,
    "edge_softmax_backward": 1.3,
}
_REPLAYED_BYTES = 8 << 30  # results above are timed eagerly: a CUDA graph's pool would not fit
_COPIED_BYTES = 1 << 30


@dataclass(frozen=True)
class Settings:
    """Sizes and sampling of a run. ``check_yardstick``: as for ``bench attention``."""

    heads: int = 2
    dim: int = 64
    device: str = "cuda"
    dtypes: tuple[str, ...] = ("float32",)
    inner: int = timing.INNER
    repeats: int = timing.REPEATS
    check_yardstick: Path | None = None


@dataclass(frozen=True)
class Case:
    """One operator.

    Attributes
    ----------
    name : str
    call : callable
    against : {"g1", "bytes"}
        What its time is divided by.
    num_bytes : int
        Bytes that it cannot avoid: each neighbour row, edge value, id and result once.
    result_bytes : int
    """

    name: str
    call: Callable[[], Any]
    against: str
    num_bytes: int
    result_bytes: int


def run(graphs: list[str], settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every graph in every dtype, with edges as given and in CSR order.

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
        for dtype in settings.dtypes:
            say(f"{name} {dtype}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
            rows.append(_row(data, dtype, settings))
            release(settings.device)
    return {**document("operators", asdict(settings), device_report()), "graphs": rows}


def _row(data: GraphData, dtype: str, settings: Settings) -> dict[str, Any]:
    kind, width = getattr(torch, dtype), settings.heads * settings.dim
    graph = Graph.from_edge_index(data.edge_index, data.num_nodes, data.num_nodes)
    limit = None
    if yardstick.supports(width, kind):
        limit = yardstick.measure(graph, width, kind, settings.inner, settings.repeats)
        if settings.check_yardstick is not None:
            path = settings.check_yardstick
            limit["check"] = yardstick.check(path, limit, data, width, dtype)
    release(settings.device)
    rate = timing.copy_rate(_COPIED_BYTES, settings.device, settings.inner, settings.repeats)
    row: dict[str, Any] = {
        "graph": data.name,
        "dtype": dtype,
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "max_in_degree": graph.stats("dst").maximum,
        "yardstick": limit,
        "copy_bytes_a_ms": rate,
        "cusparse_sum_ms": cusparse_ms(graph, kind, width, settings.device, settings.repeats),
        "edge_gather_ms": _edge_gather_ms(graph, kind, settings),
        "operators": {},
    }
    in_order = Graph.from_csr(graph.by_dst.indptr, graph.by_dst.indices, data.num_nodes)
    for order, own in (("given", graph), ("csr", in_order)):
        measured = row["operators"][order] = {}
        for case in _cases(own, kind, settings):
            measured[case.name] = _measured(case, limit, rate, settings)
            release(settings.device)
    if kind is torch.float32:
        row["dgl"] = dgl_graphs.measure(
            data, settings.heads, settings.dim, settings.device, settings.repeats
        )
    return row


def _cases(graph: Graph, kind: torch.dtype, settings: Settings) -> Iterator[Case]:
    heads, dim, device = settings.heads, settings.dim, settings.device
    generator = torch.Generator(device=device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(kind)

    edges, size = graph.num_edges, kind.itemsize
    rows = heads * dim * size
    node_rows = graph.num_dst * rows
    edge_id = 0 if graph.by_dst.edge_ids is None else 4
    x = draw(graph.num_src, heads, dim)

    def reduces(name: str, op: str, reduce: str, e: Tensor | None, arguments: bool = True) -> Case:
        def call() -> Any:
            return gspmm(graph, op, reduce, x, e, arguments=arguments)

        ids = 4 + (0 if e is None else edge_id)
        values = 0 if e is None else e[0].numel() * size
        return Case(name, call, "g1", edges * (ids + rows + values) + node_rows, node_rows)

    yield reduces("copy_u_sum", "copy_lhs", "sum", None)
    yield reduces("copy_u_mean", "copy_lhs", "mean", None)
    yield reduces("copy_u_max", "copy_lhs", "max", None, arguments=False)
    yield reduces("copy_u_max_argument", "copy_lhs", "max", None)
    yield reduces("u_mul_e_sum", "mul", "sum", draw(edges, 1, 1))
    yield reduces("u_mul_e_heads_sum", "mul", "sum", draw(edges, heads, 1))
    y = draw(graph.num_dst, heads, dim)
    each = heads * size
    yield Case("u_add_v", lambda: gsddmm(graph, "add", x, y), "bytes",
               edges * (4 + edge_id + 2 * rows) + node_rows, edges * rows)  # fmt: skip
    yield Case("u_dot_v", lambda: gsddmm(graph, "dot", x, y), "bytes",
               edges * (4 + edge_id + rows + each) + node_rows, edges * each)  # fmt: skip
    logits = draw(edges, heads)
    yield Case("edge_softmax", lambda: edge_softmax(graph, logits), "bytes",
               edges * (edge_id + 2 * each), edges * each)  # fmt: skip
    out = edge_softmax(graph, logits)
    yield Case("edge_softmax_backward", lambda: edge_softmax_backward(graph, out, logits),
               "bytes", edges * (edge_id + 3 * each), edges * each)  # fmt: skip


def _measured(
    case: Case, limit: dict[str, Any] | None, rate: float, settings: Settings
) -> dict[str, Any]:
    try:
        with profile() as record:
            case.call()  # compiles, and builds what the graph builds on first use
        release(settings.device)
        if case.result_bytes > _REPLAYED_BYTES:
            inner, how = 1, "eager"
            time = timing.eager_ms(case.call, settings.device, inner, settings.repeats)
        else:
            how = "replay"
            time = timing.replay_ms(case.call, settings.inner, settings.repeats)
    except torch.cuda.OutOfMemoryError:
        return {"ms": None, "timed": "out of memory", "ratio": None}
    void = limit is not None and limit.get("check", {}).get("void", False)
    base = case.num_bytes / rate
    if case.against == "g1":
        base = 0.0 if limit is None or void else limit["g1_ms"]
    return {
        "ms": time,
        "timed": how,
        "launches": sum(record.launches.values()),
        "bytes": case.num_bytes,
        "against": case.against,
        "ratio": round(time / base, 3) if base else None,
    }


def _edge_gather_ms(graph: Graph, kind: torch.dtype, settings: Settings) -> float:
    """Milliseconds of torch's gather of one row of ``heads`` values an edge, in the CSR's order.

    What an operator cannot avoid that reads edge values in another order than they lie in memory:
    each of them costs a sector of the memory.
    """
    ids = graph.by_dst.edge_ids
    if ids is None:
        return 0.0
    values = torch.zeros(graph.num_edges, settings.heads, dtype=kind, device=settings.device)
    out = torch.empty_like(values)

    def call() -> None:
        torch.index_select(values, 0, ids, out=out)

    return timing.replay_ms(call, settings.inner, settings.repeats)


def cusparse_ms(
    graph: Graph, kind: torch.dtype, width: int, device: str, repeats: int
) -> float | str:
    """Milliseconds of torch's CSR product for the sum of neighbours, eager; a text says why not."""
    csr = graph.by_dst
    try:
        values = torch.ones(graph.num_edges, dtype=kind, device=device)
        matrix = torch.sparse_csr_tensor(
            csr.indptr, csr.indices, values, (graph.num_dst, graph.num_src), check_invariants=False
        )
        x = torch.randn(graph.num_src, width, device=device).to(kind)
        return timing.eager_ms(lambda: matrix @ x, device, 3, repeats)
    except (RuntimeError, NotImplementedError) as error:
        return str(error).splitlines()[0]


def release(device: str) -> None:
    """Give unused memory of the GPU back."""
    if torch.device(device).type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()

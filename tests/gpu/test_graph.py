"""Graphs built on the device: the same conventions, checks, and few waits for the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from tests.gpu import support
from tests.gpu.support import raises, table
from tests.ops.support import edges_with_hubs, problem, run

pytestmark = support.MARKS


def sorted_rows(keys: Tensor, values: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Bounds, other endpoints and order of edges grouped by ``keys``, by sorting on the CPU."""
    order = torch.sort(keys, stable=True).indices
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64),
                        torch.bincount(keys, minlength=groups).cumsum(0)])  # fmt: skip
    return bounds, values[order], order


@table("dtype", [torch.int32, torch.int64])
@table("num_edges", [0, 1, 220, 300_000])
def test_both_directions(dtype: torch.dtype, num_edges: int) -> None:
    edges, num_src, num_dst = edges_with_hubs()
    if num_edges != edges.shape[1]:
        num_src, num_dst = 5000, 4000
        edges = torch.stack([torch.randint(0, n, (num_edges,)) for n in (num_src, num_dst)])
    graph = Graph.from_edge_index(edges.to(support.DEVICE, dtype), num_src, num_dst)
    src, dst = edges
    for got, want in zip(
        (graph.by_dst.indptr, graph.by_dst.indices, graph.by_dst.edge_ids),
        sorted_rows(dst, src, num_dst),
        strict=True,
    ):
        assert got.dtype == torch.int32 and torch.equal(got.cpu().long(), want)
    # By source, rows are in the order of by_dst.
    order = torch.sort(dst, stable=True).indices
    bounds, others, inner = sorted_rows(src[order], dst[order], num_src)
    for got, want in zip(
        (graph.by_src.indptr, graph.by_src.indices, graph.by_src.edge_ids),
        (bounds, others, order[inner]),
        strict=True,
    ):
        assert got.dtype == torch.int32 and torch.equal(got.cpu().long(), want)


@table("chunk", [1, 8, 64, 256])
@table("direction", ["dst", "src"])
def test_splits_hold_every_edge_once(chunk: int, direction: str) -> None:
    edges, num_src, num_dst = edges_with_hubs()
    graph = Graph.from_edge_index(edges.to(support.DEVICE), num_src, num_dst)
    splits, degrees = graph.splits(direction, chunk), graph.csr(direction).indptr.diff().tolist()
    held: dict[int, list[tuple[int, int, int]]] = {}
    for row, slot, low, high in splits.tasks.tolist():
        packed = (low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32
        held.setdefault(row, []).append((packed & ((1 << 48) - 1), packed >> 48, slot))
    begin, slots = 0, 0
    for row, degree in enumerate(degrees):
        pieces = sorted(held.pop(row))
        assert [p[0] for p in pieces] == [begin + i * chunk for i in range(len(pieces))]
        assert sum(p[1] for p in pieces) == degree and all(p[1] <= chunk for p in pieces)
        first = slots if len(pieces) > 1 else -1
        assert [p[2] for p in pieces] == (
            [-1] if first < 0 else [*range(first, first + len(pieces))]
        )
        slots += len(pieces) if len(pieces) > 1 else 0
        begin += degree
    assert not held and splits.num_slots == slots == int(splits.heavy_ptr[-1])


@table("end, bad", [(0, -1), (0, 37), (1, -5), (1, 29), (0, 2**40), (1, 2**40)])
def test_ids_out_of_range(end: int, bad: int) -> None:
    edges, num_src, num_dst = edges_with_hubs()
    edges[end, 100] = bad
    text = f"{('source', 'destination')[end]} of edge 100 out of range; got {bad}"
    call = lambda: Graph.from_edge_index(edges.to(support.DEVICE), num_src, num_dst)  # noqa: E731
    raises(InvalidArgument, call, text)


def test_from_csr() -> None:
    edges, num_src, num_dst = edges_with_hubs()
    first = Graph.from_edge_index(edges.to(support.DEVICE), num_src, num_dst)
    csr = first.by_dst
    again = Graph.from_csr(csr.indptr.long(), csr.indices.long(), num_src, csr.edge_ids)
    for name in ("indptr", "indices", "edge_ids"):
        assert torch.equal(getattr(first.by_src, name), getattr(again.by_src, name))
    broken = csr.indptr.clone()
    broken[3] = 10_000
    raises(InvalidArgument, lambda: Graph.from_csr(broken, csr.indices, num_src), "indptr")


def waits(call: Callable[[], object]) -> int:
    """How often the host waits for the device during the call."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")  # warns of itself, so before recording
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchronizing" in str(w.message) for w in caught)


def test_the_host_waits_once_to_build_and_never_to_run() -> None:
    edges, num_src, num_dst = edges_with_hubs()
    edges, p = edges.to(support.DEVICE), problem(device=support.DEVICE)
    run(p)  # kernels are loaded
    built = []
    assert waits(lambda: built.append(Graph.from_edge_index(edges, num_src, num_dst))) <= 1
    p.graph = built[0]
    assert waits(lambda: run(p)) == 0

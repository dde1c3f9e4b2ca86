"""The model of orders: what it counts, what it predicts, and when it is asked."""

from __future__ import annotations

import pytest
import torch

from gnn_backend import config, datasets
from gnn_backend.graph import Graph
from gnn_backend.graph.locality import Locality, by_length, sample_locality
from gnn_backend.runtime import reordering
from gnn_backend.runtime.reorder_choice import (
    MARGIN,
    Caches,
    edge_time,
    possible_gain,
    predicted_gain,
)

SMALL = Caches(l1=32 << 10, l2=1 << 20)
ROW = 512


def grid(shuffle: bool, side: int = 120) -> Graph:
    data = datasets.GraphData("grid", datasets.grid(side, side), side * side)
    edges = (datasets.shuffled(data) if shuffle else data).edge_index
    return Graph.from_edge_index(edges, side * side, side * side)


def test_distinct_neighbours_are_counted() -> None:
    same = Graph.from_csr(torch.arange(0, 4097, 16), torch.zeros(4096, dtype=torch.int64), 9)
    assert dict(sample_locality(same.by_dst, 9).windows) == {256: 1.0, 2048: 1.0}
    own = Graph.from_csr(torch.arange(0, 4097, 16), torch.arange(4096), 4096)
    assert dict(sample_locality(own.by_dst, 4096).windows) == {256: 256.0, 2048: 2048.0}
    assert sample_locality(own.by_dst, 4096).misses(10) == 1.0


def test_an_order_of_the_rows_is_counted_in_that_order() -> None:
    # Even rows read one neighbour, odd rows another each time.
    neighbours = torch.arange(256)
    neighbours[::2] = 0
    graph = Graph.from_csr(torch.arange(0, 257), neighbours, 256)
    even_first = torch.cat([torch.arange(0, 256, 2), torch.arange(1, 256, 2)])
    doubled = Graph.from_csr(torch.arange(0, 513, 2), neighbours.repeat_interleave(2), 256)
    assert sample_locality(graph.by_dst, 256).windows == ((256, 129.0),)
    mean = sample_locality(doubled.by_dst, 256, even_first).windows[0][1]
    assert mean == (1 + 128) / 2  # the first 256 edges read one row, the others 128
    assert sample_locality(doubled.by_dst, 256).windows[0][1] == 65.0


def test_misses_lie_between_windows() -> None:
    locality = Locality(1 << 14, 1 << 12, ((256, 256.0), (2048, 512.0), (16384, 4096.0)))
    assert locality.misses(100) == 1.0
    assert locality.misses(256) == pytest.approx(1.0)
    assert locality.misses(511) == pytest.approx(0.25, rel=0.01)
    assert 0.25 <= locality.misses(1000) < 0.3
    assert locality.misses(5000) == 0.25  # what is left: 2^12 nodes of 2^14 edges
    shares = [locality.misses(rows) for rows in range(300, 6000, 100)]
    assert all(0.0 < share <= 1.0 for share in shares)


def test_graphs_without_windows() -> None:
    few = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2, 2)
    locality = sample_locality(few.by_dst, 2)
    assert locality.windows == () and locality.misses(4) == 1.0
    none = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 2, 2)
    assert edge_time(sample_locality(none.by_dst, 2), ROW) > 0


def test_gains() -> None:
    mixed, even = grid(shuffle=True), grid(shuffle=False)
    before = sample_locality(mixed.by_dst, mixed.num_src)
    order = mixed.reorder("community").order
    assert order is not None
    after = sample_locality(mixed.by_dst, mixed.num_src, order.dst)
    gain = predicted_gain(before, after, ROW, SMALL)
    assert MARGIN < 1.4 < gain < possible_gain(before, ROW, SMALL)
    assert predicted_gain(after, before, ROW, SMALL) == pytest.approx(1 / gain)
    # Longest first takes even streets apart.
    longest = by_length(even.by_dst.indptr.diff(), 1024)
    apart = sample_locality(even.by_dst, even.num_src, longest)
    natural = sample_locality(even.by_dst, even.num_src)
    assert predicted_gain(apart, natural, ROW, SMALL) > MARGIN
    # A table that fits L2 has less to gain.
    assert predicted_gain(before, after, ROW) < gain


def test_the_order_that_is_found() -> None:
    mixed = grid(shuffle=True)
    found, final = reordering.look(mixed, ROW, 1 << 20, SMALL)
    assert final and found.order is not None and found.order.method == "community"
    early, final = reordering.look(mixed, ROW, 1, SMALL)
    assert early is mixed and not final
    even, final = reordering.look(grid(shuffle=False), ROW, 1, SMALL)
    assert even.order is not None and even.order.method == "natural" and not final
    hubs = Graph.from_edge_index(datasets.rmat(500, 40_000), 500, 500)
    same, final = reordering.look(hubs, ROW, 1 << 20, Caches())
    assert same is hubs and final


def test_graphs_are_looked_at_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reordering, "_SMALL", 0)
    monkeypatch.setattr(reordering, "caches_of", lambda _: SMALL)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    asked: list[int] = []

    def look(graph: Graph, row_bytes: int, calls: int, caches: Caches) -> tuple[Graph, bool]:
        asked.append(calls)
        return graph.reorder("natural"), calls > 20

    monkeypatch.setattr(reordering, "look", look)
    graph, device = grid(shuffle=False, side=8), torch.device("cuda")
    found = [reordering._chosen(graph, device, ROW) for _ in range(70)]
    assert asked == [16, 64]
    ordered = graph.reorder("natural")
    assert all(each is graph for each in found[:15]) and all(each is ordered for each in found[15:])
    graph.clear()
    assert reordering._chosen(graph, device, ROW) is graph
    with config.override(reorder="auto"):  # never on the CPU
        assert reordering.arranged(graph, torch.ones(2), 4) is graph

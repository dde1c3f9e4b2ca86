"""What a Graph holds and for how long: lazy parts, threads, copies, pickles, its end."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType

import pytest
import torch

from gnn_backend.graph import Graph
from gnn_backend.graph import graph as graph_module
from tests.graph.support import (
    EDGES,
    NUM_DST,
    NUM_SRC,
    by_destination,
    by_source,
    edge_index,
    rows_of,
)


def make() -> Graph:
    return Graph.from_edge_index(edge_index(), NUM_SRC, NUM_DST)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_lazy_parts_are_built_once_and_counted() -> None:
    graph = make()
    first = graph.nbytes()
    assert first == 4 * (NUM_DST + 1 + 2 * len(EDGES))
    by_src, splits, stats = graph.by_src, graph.splits("src", 2), graph.stats("dst")
    assert graph.by_src is by_src
    assert graph.splits("src", 2) is splits and graph.splits("src", 3) is not splits
    assert graph.splits("dst", 2) is not splits
    assert graph.stats("dst") is stats
    # Edge ids by source are made only for those who ask.
    held = first + 4 * (NUM_SRC + 1 + len(EDGES))
    held += sum(graph.splits(d, c).nbytes() for d, c in (("src", 2), ("src", 3), ("dst", 2)))
    assert graph.nbytes() == held
    assert graph.by_src.edge_ids is graph.by_src.edge_ids
    assert graph.nbytes() == held + 4 * len(EDGES)


def test_clear_drops_lazy_parts_alone() -> None:
    graph = make()
    first, by_dst = graph.nbytes(), graph.by_dst
    by_src, splits, stats = graph.by_src, graph.splits("dst", 2), graph.stats("src")
    graph.clear()
    assert graph.nbytes() == first and graph.by_dst is by_dst
    assert graph.by_src is not by_src and rows_of(graph.by_src) == rows_of(by_src)
    assert graph.splits("dst", 2) is not splits
    assert torch.equal(graph.splits("dst", 2).tasks, splits.tasks)
    assert graph.stats("src") is not stats and graph.stats("src") == stats


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "copy"])
def test_copies(how: str) -> None:
    graph = make()
    graph.splits("src", 2)
    copies = {
        "pickle": lambda g: pickle.loads(pickle.dumps(g)),
        "deepcopy": copy.deepcopy,
        "copy": copy.copy,
    }
    again = copies[how](graph)
    assert (again.num_src, again.num_dst) == (NUM_SRC, NUM_DST)
    assert rows_of(again.by_dst) == by_destination(EDGES, NUM_DST)
    assert rows_of(again.by_src) == by_source(EDGES, NUM_SRC, NUM_DST)
    shares = again.by_dst.indices.data_ptr() == graph.by_dst.indices.data_ptr()
    assert shares == (how == "copy")


def test_a_pickle_leaves_lazy_parts_out() -> None:
    graph = make()
    small = len(pickle.dumps(graph))
    graph.stats("src"), graph.splits("src", 1), graph.splits("dst", 1)
    assert len(pickle.dumps(graph)) == small


def test_pickle_of_a_graph_without_edge_ids() -> None:
    graph = Graph.from_csr(torch.tensor([0, 1, 1]), torch.tensor([4]), 5)
    again = pickle.loads(pickle.dumps(graph))
    assert (again.num_src, again.num_dst, again.by_dst.edge_ids) == (5, 2, None)


@pytest.mark.parametrize("source", ["edge_index", "csr"])
def test_freed_without_the_collector(source: str, no_collector: None) -> None:
    graph = make()
    if source == "csr":
        csr = graph.by_dst
        graph = Graph.from_csr(csr.indptr, csr.indices, NUM_SRC, csr.edge_ids)
        del csr
    graph.splits("dst", 2), graph.splits("src", 2), graph.stats("src")
    assert graph.by_src.edge_ids is not None
    parts = [weakref.ref(graph), weakref.ref(graph.by_src.indices)]
    parts += [weakref.ref(graph.by_src.edge_ids), weakref.ref(graph.splits("dst", 2).tasks)]
    del graph
    assert [part() for part in parts] == [None] * len(parts)


def test_by_src_outlives_its_graph() -> None:
    by_src = make().by_src  # its edge ids are not built yet
    gc.collect()
    assert rows_of(by_src) == by_source(EDGES, NUM_SRC, NUM_DST)


def test_threads_share_what_is_built() -> None:
    generator = torch.Generator().manual_seed(0)
    graph = Graph.from_edge_index(torch.randint(0, 400, (2, 20_000), generator=generator))
    start, found = threading.Barrier(8), []

    def build() -> None:
        start.wait()
        found.append((graph.by_src, graph.splits("src", 4), graph.splits("dst", 4)))

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({tuple(map(id, parts)) for parts in found}) == 1


@pytest.mark.parametrize("part", ["by_src", "splits", "stats"])
def test_clear_in_another_thread_takes_nothing_from_a_reader(part: str) -> None:
    """Another thread clears before every line that the reader runs, where no lock stops it."""
    graph, cleared = make(), []

    def clear_if_free() -> None:
        if graph._lock.acquire(blocking=False):
            graph.clear()
            graph._lock.release()
            cleared.append(True)

    def trace(frame: FrameType, event: str, arg: object) -> object:
        if frame.f_code.co_filename == graph_module.__file__:
            other = threading.Thread(target=clear_if_free)
            other.start()
            other.join()
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = {
            "by_src": lambda: graph.by_src,
            "splits": lambda: graph.splits("dst", 2),
            "stats": lambda: graph.stats("dst"),
        }[part]()
    finally:
        sys.settrace(before)
    assert found is not None
    assert len(cleared) > 2

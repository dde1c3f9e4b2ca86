"""The graph cache: hits, invalidation, lifetime, bounds, threads."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from gnn_backend.adapters.pyg import cache as cache_module
from gnn_backend.adapters.pyg import cached_bytes, clear_cache, edges
from gnn_backend.adapters.pyg.cache import MAX_VARIANTS, GraphCache, graph_of
from gnn_backend.adapters.pyg.edges import Variant
from gnn_backend.graph import Graph

pytest.importorskip("torch_geometric")
from torch_geometric import EdgeIndex

PLAIN = Variant(5, 5, self_loops=False)


def edge_list() -> Tensor:
    return torch.tensor([[0, 1, 2, 2, 4, 3], [1, 2, 0, 2, 3, 0]])


def adjacency() -> Tensor:
    return torch.sparse_coo_tensor(edge_list().flip(0), torch.ones(6), (5, 5)).coalesce()


FORMS: dict[str, Callable[[], Tensor]] = {
    "list": edge_list,
    "int32": lambda: edge_list().int(),
    "EdgeIndex": lambda: EdgeIndex(edge_list(), sparse_size=(5, 5)),
    "unsized": lambda: EdgeIndex(edge_list()[:, :5]).sort_by("col")[0],
    "sorted": lambda: EdgeIndex(edge_list(), sparse_size=(5, 5)).sort_by("col")[0],
    "filled": lambda: EdgeIndex(edge_list(), sparse_size=(5, 5)).sort_by("row")[0].fill_cache_(),
    "coo": adjacency,
    "csr": lambda: adjacency().to_sparse_csr(),
}


def variant_of(form: str) -> Variant:
    """Node counts: an unsized EdgeIndex has as many destinations as its largest says."""
    return Variant(5, 4, self_loops=False) if form == "unsized" else PLAIN


pytestmark = pytest.mark.filterwarnings("ignore:Sparse")


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Variant]:
    """Grows by one variant for each graph that is built."""
    seen: list[Variant] = []

    def build(edges_: Any, variant: Variant) -> Graph:
        seen.append(variant)
        return edges.build_graph(edges_, variant)

    monkeypatch.setattr(cache_module, "build_graph", build)
    return seen


def pairs(graph: Graph) -> list[tuple[int, int]]:
    """(source, destination) of every edge, sorted."""
    degree = graph.by_dst.indptr.diff().long()
    rows = torch.repeat_interleave(torch.arange(graph.num_dst), degree)
    return sorted(zip(graph.by_dst.indices.tolist(), rows.tolist(), strict=True))


def expected(edge_index: Tensor) -> list[tuple[int, int]]:
    return sorted(zip(*edge_index.tolist(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_one_build_and_the_right_edges(form: str, built: list[Variant]) -> None:
    given, variant = FORMS[form](), variant_of(form)
    first = graph_of(given, variant)
    assert graph_of(given, variant) is first
    assert graph_of(given, variant) is first
    assert built == [variant]
    number = 5 if form == "unsized" else 6
    assert pairs(first) == expected(edge_list()[:, :number])


@pytest.mark.parametrize("form", ["list", "int32", "EdgeIndex", "sorted", "filled"])
def test_edge_ids_are_the_callers(form: str) -> None:
    given = FORMS[form]()
    graph = graph_of(given, PLAIN)
    ids = graph.by_dst.edge_ids
    order = torch.arange(6) if ids is None else ids.long()
    data = getattr(given, "_data", given)
    assert data[0][order].tolist() == graph.by_dst.indices.tolist()


def test_self_loops_are_the_stock_layers() -> None:
    from torch_geometric.utils import add_self_loops, remove_self_loops

    given = torch.tensor([[0, 0, 1, 3, 3, 2], [0, 1, 0, 3, 3, 2]])
    for num_src, num_dst in ((5, 5), (5, 4), (4, 6)):
        want = add_self_loops(remove_self_loops(given)[0], num_nodes=min(num_src, num_dst))[0]
        got = graph_of(given, Variant(num_src, num_dst, self_loops=True))
        assert pairs(got) == expected(want)
        assert (got.num_src, got.num_dst) == (num_src, num_dst)


def test_reversed() -> None:
    given = edge_list()
    got = graph_of(given, Variant(5, 5, self_loops=False, reverse=True))
    assert pairs(got) == expected(given.flip(0))
    by_row = EdgeIndex(given, sparse_size=(5, 5)).sort_by("row")[0]
    assert pairs(graph_of(by_row, Variant(5, 5, False, reverse=True))) == expected(given.flip(0))


def _edit(given: Tensor) -> None:
    given[1, 0] = 4


def _edit_through_a_view(given: Tensor) -> None:
    given[1][0:1].fill_(4)


def _edit_through_a_detached_alias(given: Tensor) -> None:
    given.detach()[1, 0] = 4


def _replace_the_data(given: Tensor) -> None:
    new = given.clone()
    new[1, 0] = 4
    given.data = new


@pytest.mark.parametrize(
    "edit", [_edit, _edit_through_a_view, _edit_through_a_detached_alias, _replace_the_data]
)
def test_edited_edge_index(edit: Callable[[Tensor], None], built: list[Variant]) -> None:
    given = edge_list()
    stale = graph_of(given, PLAIN)
    edit(given)
    fresh = graph_of(given, PLAIN)
    assert fresh is not stale
    assert pairs(fresh) == expected(given) != pairs(stale)
    assert len(built) == 2


@pytest.mark.parametrize("form", ["EdgeIndex", "sorted", "filled"])
@pytest.mark.parametrize("where", ["wrapper", "data"])
def test_edited_edge_index_object(form: str, where: str) -> None:
    given = FORMS[form]()
    graph_of(given, PLAIN)
    target = given if where == "wrapper" else given.as_tensor()
    target[0, 0] = 4  # sources, so a claimed sort order by destination still holds
    got = graph_of(given, PLAIN)
    assert pairs(got) == expected(given.as_tensor())


@pytest.mark.parametrize("form", ["coo", "csr"])
def test_edited_adjacency(form: str) -> None:
    given = FORMS[form]()
    graph_of(given, PLAIN)
    sources = given.indices()[1] if form == "coo" else given.col_indices()
    sources[0] = 4
    dense = given.to_dense().t().nonzero().t()
    assert pairs(graph_of(given, PLAIN)) == expected(dense)


@pytest.mark.parametrize("form", ["int32", "sorted", "csr"])
def test_a_held_graph_does_not_follow_edits(form: str) -> None:
    """A backward pass holds the graph of its forward pass."""
    given = EdgeIndex(edge_list().int(), sparse_size=(5, 5)).sort_by("col")[0]
    if form != "sorted":
        given = FORMS[form]() if form == "int32" else _int32_csr()
    graph = graph_of(given, PLAIN)
    before = pairs(graph)
    target = given.col_indices() if form == "csr" else getattr(given, "_data", given)[0]
    target.fill_(4)
    assert pairs(graph) == before


def _int32_csr() -> Tensor:
    csr = adjacency().to_sparse_csr()
    ptr, col = csr.crow_indices().int(), csr.col_indices().int()
    return torch.sparse_csr_tensor(ptr, col, torch.ones(6), (5, 5))


def test_another_tensor_of_equal_shape(built: list[Variant]) -> None:
    for k in range(20):  # freed memory is used again: addresses and ids repeat
        given = torch.tensor([[k % 5, 1], [1, k % 3]])
        assert pairs(graph_of(given, PLAIN)) == expected(given)
        del given
    assert len(built) == 20


def test_slices_of_one_tensor() -> None:
    whole = edge_list()
    first, second = whole[:, :3], whole[:, 3:]
    assert pairs(graph_of(first, PLAIN)) == expected(first)
    assert pairs(graph_of(second, PLAIN)) == expected(second)
    whole[0, 0] = 3
    assert pairs(graph_of(first, PLAIN)) == expected(first)


def test_equal_content_is_not_shared() -> None:
    given = edge_list()
    twin = given.clone()
    assert graph_of(given, PLAIN) is not graph_of(twin, PLAIN)


@pytest.mark.parametrize("form", FORMS)
def test_freed_with_the_users_object(form: str) -> None:
    given = FORMS[form]()
    held = weakref.ref(graph_of(given, variant_of(form)))
    assert cached_bytes() > 0
    del given
    gc.collect()
    assert held() is None
    assert cached_bytes() == 0


def test_alive_while_only_a_view_is_left() -> None:
    given = edge_list()
    graph_of(given, PLAIN)
    view = given[:, :3]
    del given
    gc.collect()
    base = view._base
    assert base is not None
    assert pairs(graph_of(base, PLAIN)) == expected(base)


def test_variants_are_bounded(built: list[Variant]) -> None:
    given = edge_list()
    variants = [Variant(5 + k, 5, self_loops=False) for k in range(MAX_VARIANTS + 2)]
    graphs = [graph_of(given, v) for v in variants]
    assert len(cache_module._cache.graphs()) == MAX_VARIANTS
    assert graph_of(given, variants[-1]) is graphs[-1]
    assert graph_of(given, variants[0]) is not graphs[0]
    assert len(built) == len(variants) + 1


def test_inference_tensors_are_not_kept(built: list[Variant]) -> None:
    with torch.inference_mode():
        given = edge_list()
        assert pairs(graph_of(given, PLAIN)) == expected(given)
        given[0, 0] = 3
        assert pairs(graph_of(given, PLAIN)) == expected(given)
    assert len(built) == 2
    assert cached_bytes() == 0


def test_a_graph_built_in_inference_mode_serves_training() -> None:
    given = edge_list()
    with torch.inference_mode():
        graph = graph_of(given, PLAIN)
    assert not graph.by_dst.indices.is_inference()
    assert graph_of(given, PLAIN) is graph


def test_caching_leaves_no_trace_on_the_tensor() -> None:
    given = edge_list()
    graph_of(given, PLAIN)
    assert vars(given) == {}
    assert torch.equal(copy.deepcopy(given), given)


def test_bad_edges_are_not_remembered(built: list[Variant]) -> None:
    from gnn_backend.errors import InvalidArgument

    given = edge_list()
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            graph_of(given, Variant(3, 5, self_loops=False))
    assert len(built) == 2
    assert cached_bytes() == 0


def test_stale_sort_claims_are_noticed() -> None:
    from gnn_backend.errors import InvalidArgument

    claimed = EdgeIndex(edge_list(), sparse_size=(5, 5), sort_order="col")  # it is not
    with pytest.raises(InvalidArgument, match="order"):
        graph_of(claimed, PLAIN)
    filled = FORMS["filled"]()
    filled.as_tensor()[1, 0] = 4  # its cached transposition is now wrong
    assert pairs(graph_of(filled, PLAIN)) == expected(filled.as_tensor())


def test_threads_build_once(built: list[Variant]) -> None:
    given = [torch.randint(5, (2, 50)) for _ in range(8)]
    barrier = threading.Barrier(8)

    def work(thread: int) -> list[Graph]:
        barrier.wait()
        return [graph_of(g, PLAIN) for g in given[thread:] + given[:thread]]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert len(built) == 8
    assert len({id(graph) for graphs in results for graph in graphs}) == 8


def test_threads_with_edits_and_frees() -> None:
    cache = GraphCache()
    failures: list[str] = []

    def work(thread: int) -> None:
        generator = torch.Generator().manual_seed(thread)
        for _ in range(40):
            given = torch.randint(5, (2, 20), generator=generator)
            for _ in range(3):
                if pairs(cache.get(given, PLAIN)) != expected(given):
                    failures.append(f"thread {thread} got a stale graph")
                given.random_(0, 5, generator=generator)
            cache.nbytes()

    threads = [threading.Thread(target=work, args=(t,)) for t in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    gc.collect()
    assert cache.nbytes() == 0


def test_clear() -> None:
    given = edge_list()
    first = graph_of(given, PLAIN)
    assert cached_bytes() == first.nbytes()
    clear_cache()
    assert cached_bytes() == 0
    assert graph_of(given, PLAIN) is not first


def test_self_loops_are_added_to_the_graph_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = torch.tensor([[0, 1, 2, 2], [1, 2, 2, 0]])
    kept = GraphCache()
    kept.get(edges, Variant(3, 3, False))
    monkeypatch.setattr(cache_module, "build_graph", None)
    looped = kept.get(edges, Variant(3, 3, True, fill_value=1.0))
    assert looped.num_edges == 6
    assert looped is kept.get(edges, Variant(3, 3, True, fill_value=1.0))

"""The Graph kept with a DGLGraph: right, followed by every change, shared, freed."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnn_backend
from gnn_backend.errors import Unsupported
from gnn_backend.patching import registry

pytest.importorskip("dgl", reason="DGL is not installed")
import dgl
from dgl.heterograph_index import HeteroGraphIndex
from dgl.nn.pytorch import GATv2Conv

from gnn_backend.adapters.dgl import cached_bytes, clear_cache, graph_of
from tests.adapters.dgl.helpers import KINDS, make_graph
from tests.adapters.pyg.helpers import edges, normal
from tests.cases.cases import check_graph_cache

FORMATS = [None, "coo", "csc", ["csr", "csc"], ["coo", "csr"]]


def triples(src: Any, dst: Any, edge: Any) -> list[tuple[int, int, int]]:
    """Edges as sorted (id, source, destination)."""
    return sorted(zip(edge.tolist(), src.tolist(), dst.tolist(), strict=True))


def as_triples(g: Any) -> list[tuple[int, int, int]]:
    """The same of the Graph of ``g``."""
    csr = graph_of(g).by_dst
    rows = torch.repeat_interleave(torch.arange(len(csr.indptr) - 1), csr.indptr.diff())
    ids = torch.arange(len(csr.indices)) if csr.edge_ids is None else csr.edge_ids
    return triples(csr.indices, rows, ids)


@pytest.mark.parametrize("formats", FORMATS, ids=str)
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", KINDS)
def test_same_edges_as_dgl(kind: str, idtype: torch.dtype, formats: Any) -> None:
    g = make_graph(kind, idtype=idtype)
    want = triples(*g.edges("all"))
    graph = graph_of(g if formats is None else g.formats(formats))
    assert (graph.num_src, graph.num_dst) == (g.num_src_nodes(), g.num_dst_nodes())
    assert as_triples(g if formats is None else g.formats(formats)) == want


def test_in_edges_that_dgl_already_has() -> None:
    g = make_graph("homogeneous")
    want = triples(*g.edges("all"))
    g.create_formats_()
    assert as_triples(g) == want
    csc = dgl.graph(("csc", ([0, 2, 2, 3], [1, 0, 2], [])))
    assert as_triples(csc) == [(0, 1, 0), (1, 0, 0), (2, 2, 2)]


def test_graph_from_out_edges_alone() -> None:
    g = dgl.graph(("csr", ([0, 2, 2, 3], [1, 0, 2], [2, 0, 1])))
    want = triples(*g.edges("all"))
    assert as_triples(dgl.graph(("csr", ([0, 2, 2, 3], [1, 0, 2], [2, 0, 1])))) == want


def test_refused_graphs() -> None:
    ends = torch.tensor([0, 1]), torch.tensor([1, 0])
    several = dgl.heterograph({("a", "r", "a"): ends, ("a", "s", "a"): ends})
    for g, reason in (
        (several, "graph-type"),
        (make_graph("homogeneous").formats("csr"), "dgl-restricted-format"),
    ):
        for _ in range(2):
            with pytest.raises(Unsupported) as caught:
                graph_of(g)
            assert caught.value.reason == reason


# ---------------------------------------------------------------------- sharing


def test_shared_by_what_shares_the_structure() -> None:
    g = make_graph("homogeneous")
    graph = graph_of(g)
    g.ndata["x"] = normal(14, 3)
    with g.local_scope():
        assert graph_of(g) is graph
    for same in (g, g.local_var(), copy.copy(g), g.long()):
        assert graph_of(same) is graph


def pickled(g: Any) -> Any:
    return pickle.loads(pickle.dumps(g))


def add_edges(g: Any) -> Any:
    g.add_edges(torch.tensor([3, 4]), torch.tensor([12, 12]))
    return g


def remove_edges(g: Any) -> Any:
    g.remove_edges(torch.arange(5))
    return g


def add_nodes(g: Any) -> Any:
    g.add_nodes(2)
    return g


def remove_nodes(g: Any) -> Any:
    g.remove_nodes(torch.tensor([1]))
    return g


CHANGES: dict[str, Callable[[Any], Any]] = {
    "add_edges": add_edges,
    "remove_edges": remove_edges,
    "add_nodes": add_nodes,
    "remove_nodes": remove_nodes,
    "add_self_loop": dgl.add_self_loop,
    "remove_self_loop": dgl.remove_self_loop,
    "reverse": dgl.reverse,
    "to_simple": dgl.to_simple,
    "to_bidirected": lambda g: dgl.to_bidirected(dgl.to_simple(g)),
    "subgraph": lambda g: g.subgraph(torch.arange(9)),
    "in_subgraph": lambda g: dgl.in_subgraph(g, [1, 2]),
    "reorder": lambda g: dgl.reorder_graph(g, "custom", permute_config={
        "nodes_perm": list(range(13, -1, -1))}),
    "int": lambda g: g.int(),
    "long": lambda g: g.int().long(),
    "to": lambda g: g.to("cpu"),
    "formats": lambda g: g.formats("csc").formats(["csc"]),
    "clone then add_edges": lambda g: add_edges(g.clone()),
    "local_var then add_edges": lambda g: add_edges(g.local_var()),
    "pickle": pickled,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "batch": lambda g: dgl.batch([g, g]),
    "unbatch": lambda g: dgl.unbatch(dgl.batch([dgl.rand_graph(3, 4), g]))[1],
    "shared memory": lambda g: g.shared_memory("gnn_backend_test"),
}  # fmt: skip


def test_follows_every_change() -> None:
    torch.manual_seed(0)
    conv = GATv2Conv(6, 4, 2, allow_zero_in_degree=True)

    def output(g: Any) -> Any:
        return conv(g, normal(g.num_nodes(), 6))

    def accelerated(g: Any) -> Any:
        with gnn_backend.enabled(mode="strict", hosts="dgl"):
            return output(g)

    def reference(g: Any) -> Any:  # stock cannot run on restricted formats
        return output(g.formats(["coo", "csr", "csc"]) if "csc" in g.formats()["created"] else g)

    changes = [(name, change) for name, change in CHANGES.items() if name != "formats"]
    check_graph_cache(lambda: make_graph("homogeneous"), changes, accelerated, reference)


@pytest.mark.parametrize("name", CHANGES)
def test_no_stale_graph(name: str) -> None:
    g = make_graph("homogeneous")
    before, kept = as_triples(g), graph_of(g)
    changed = CHANGES[name](g)
    if name != "formats":
        assert as_triples(changed) == triples(*changed.edges("all"))
        assert (graph_of(changed).num_src, graph_of(changed).num_dst) == (changed.num_nodes(),) * 2
    untouched = make_graph("homogeneous")
    if changed is not g:  # the original still has its own
        assert graph_of(g) is kept
        assert as_triples(g) == before == as_triples(untouched)


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
def test_copies_start_without_a_cache(copied: Callable[[Any], Any]) -> None:
    g = make_graph("homogeneous")
    graph_of(g)
    twin = copied(g)
    assert cached_bytes(g) > 0
    assert cached_bytes(twin) == 0
    assert not twin._graph._cache


# ---------------------------------------------------------------------- relation slices


def relations() -> Any:
    ends = tuple(edges(8, 8))
    return dgl.heterograph({("a", "r", "a"): ends, ("a", "s", "b"): ends}, {"a": 8, "b": 8})


def test_slices_share_their_parents_entry_while_enabled() -> None:
    hg = relations()
    original = vars(HeteroGraphIndex)["get_relation_graph"]
    with gnn_backend.enabled(hosts="dgl"):
        first = graph_of(hg["r"])
        assert graph_of(hg["r"]) is first
        assert graph_of(hg["s"]) is not first
        assert graph_of(hg["a", "s", "b"]) is graph_of(hg["s"])
        assert graph_of(hg.local_var()["r"]) is first
        assert cached_bytes(hg) == first.nbytes() + graph_of(hg["s"]).nbytes()
        assert cached_bytes(hg["r"]) == first.nbytes()
        assert as_triples(hg["s"]) == triples(*hg["s"].edges("all"))
        alone = dgl.graph(tuple(edges(8, 8)))
        assert graph_of(alone["_E"]) is graph_of(alone)
    assert vars(HeteroGraphIndex)["get_relation_graph"] is original
    assert graph_of(hg["r"]) is not first


def test_sharing_belongs_to_no_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another layer of DGL, without GATv2Conv, has it as well."""
    patches = [p for p in registry.known() if p.host == "dgl"]
    layer = next(p for p in patches if p.layer == "GATv2Conv")
    other = dataclasses.replace(layer, layer="GATConv", attribute="GATConv.forward",
                                module="dgl.nn.pytorch.conv.gatconv")  # fmt: skip
    monkeypatch.setitem(registry._patches, "dgl", [*patches, other])
    with gnn_backend.enabled(hosts="dgl", include="GATConv"):
        hg = relations()
        assert graph_of(hg["r"]) is graph_of(hg["r"])


def test_slices_follow_their_parent() -> None:
    with gnn_backend.enabled(hosts="dgl"):
        hg = relations()
        graph_of(hg["r"])
        graph_of(hg["s"])
        hg.add_edges(torch.tensor([0, 1]), torch.tensor([7, 7]), etype="r")
        for etype in ("r", "s"):
            assert as_triples(hg[etype]) == triples(*hg[etype].edges("all"))
        relation = hg["r"]
        graph_of(relation)
        relation.add_edges([2], [7])
        assert as_triples(relation) == triples(*relation.edges("all"))
        assert as_triples(hg["r"]) == triples(*hg["r"].edges("all"))
        assert graph_of(pickled(hg)["r"]).num_edges == hg.num_edges("r")


def test_a_block_of_several_relations() -> None:
    hg = relations()
    seeds = {"a": torch.arange(3), "b": torch.arange(3)}
    block = dgl.to_block(dgl.in_subgraph(hg, seeds), seeds)
    with gnn_backend.enabled(hosts="dgl"):
        for etype in ("r", "s"):
            graph = graph_of(block[etype])
            assert graph.num_dst == block[etype].num_dst_nodes()
            assert as_triples(block[etype]) == triples(*block[etype].edges("all"))
            assert graph_of(block[etype]) is graph


# ---------------------------------------------------------------------- life and memory


def trained(g: Any) -> Any:
    conv = GATv2Conv(6, 4, 2, allow_zero_in_degree=True)
    with gnn_backend.enabled(mode="strict", hosts="dgl"):
        conv(g, normal(g.num_src_nodes(), 6)).sum().backward()
    return graph_of(g)


def test_freed_with_its_graph() -> None:
    """Also without the cycle collector, after a backward has built everything."""
    g = make_graph("homogeneous")
    watched = weakref.ref(trained(g))
    gc.disable()
    try:
        assert watched() is not None
        del g
        assert watched() is None
    finally:
        gc.enable()


def test_freed_with_the_parent_of_slices() -> None:
    with gnn_backend.enabled(hosts="dgl"):
        hg = relations()
        watched = weakref.ref(graph_of(hg["r"]))
        gc.collect()
        assert watched() is not None
        relation = hg["r"]
        del hg
        assert watched() is not None
        del relation
        assert watched() is None


def test_bytes_are_counted_and_given_up() -> None:
    g = make_graph("homogeneous")
    assert cached_bytes(g) == 0
    graph = trained(g)
    assert cached_bytes(g) == graph.nbytes() > 0
    clear_cache(g)
    assert cached_bytes(g) == 0
    assert graph_of(g) is not graph


def test_threads_build_one_graph() -> None:
    g = make_graph("homogeneous")
    barrier = threading.Barrier(4)
    seen: list[Any] = []

    def work() -> None:
        barrier.wait()
        seen.append(graph_of(g))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    assert len({id(graph) for graph in seen}) == 1

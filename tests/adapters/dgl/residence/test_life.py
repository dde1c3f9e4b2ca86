"""Copies, pickles, files, sharing, formats, and the end of a resident graph."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import dgl
import pytest
import torch
from dgl import function as fn

import gnn_backend
from gnn_backend.adapters.dgl import cached_bytes, clear_cache, graph_of
from gnn_backend.adapters.dgl.residence import mirror, streams
from gnn_backend.adapters.dgl.residence.index import ResidentIndex
from tests.adapters.dgl.residence.places import (
    IDTYPES,
    Place,
    assert_same,
    assert_same_graph,
    graphs,
    heterogeneous,
    homogeneous,
)


@graphs()
@pytest.mark.parametrize("copied", ["pickle", "deepcopy", "copy", "local_var", "clone"])
def test_copies(place: Place, kind: Any, idtype: torch.dtype, copied: str) -> None:
    how: Any = {
        "pickle": lambda g: pickle.loads(pickle.dumps(g)),
        "deepcopy": copy.deepcopy,
        "copy": copy.copy,
        "local_var": lambda g: g.local_var(),
        "clone": lambda g: g.clone(),
    }[copied]
    g = kind(idtype)
    with place.standing_in():
        there = place.graph(g)
        _ = there.in_degrees() if len(there.etypes) == 1 else None
        assert_same_graph(how(there), g, place.device)


def test_blocks_are_pickled(place: Place) -> None:
    block = dgl.to_block(heterogeneous(torch.int64))
    place.check(lambda b: pickle.loads(pickle.dumps(b)), block)


def test_files(place: Place, tmp_path: Path) -> None:
    made = [homogeneous(torch.int64), heterogeneous(torch.int64)]
    for number, g in enumerate(made):
        path = str(tmp_path / f"{number}.bin")
        with place.standing_in():
            dgl.save_graphs(path, [place.graph(g)], {"y": torch.arange(3)})
        (loaded,), labels = dgl.load_graphs(path)
        assert labels["y"].tolist() == [0, 1, 2]
        with place.standing_in():
            assert_same_graph(place.graph(loaded), g, place.device)


def test_worker_processes(place: Place) -> None:
    """A graph goes through a queue between processes as it does for a loader's workers."""
    from multiprocessing.reduction import ForkingPickler

    g = homogeneous(torch.int64)
    with place.standing_in():
        there = place.graph(g)
        there.create_formats_()
        found = pickle.loads(bytes(ForkingPickler.dumps(there._graph)))
        assert type(found) is ResidentIndex
        assert found.formats()["created"] == ["coo", "csr", "csc"]


@pytest.mark.parametrize("idtype", IDTYPES)
def test_formats(place: Place, idtype: torch.dtype) -> None:
    g = homogeneous(idtype)
    with place.standing_in():
        there = place.graph(g)
        assert there.formats() == {"created": ["coo"], "not created": ["csr", "csc"]}
        there.create_formats_()
        assert there.formats() == {"created": ["coo", "csr", "csc"], "not created": []}
        only = there.formats("csc")
        assert only.formats() == {"created": ["csc"], "not created": []}
        only.ndata["x"] = there.ndata["x"]
        only.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
        there.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
        assert_same(only.ndata["y"].cpu(), there.ndata["y"].cpu(), torch.device("cpu"))
        csr = place.graph(g).formats("csr")
        csr.ndata["x"] = there.ndata["x"]
        for refused in (
            lambda: csr.update_all(fn.copy_u("x", "m"), fn.sum("m", "y")),
            lambda: only.edges(order="eid"),
            lambda: csr.adj_tensors("csc"),
        ):
            with pytest.raises(dgl.DGLError):
                refused()
        csr.apply_edges(fn.u_add_v("x", "x", "z"))


# ---------------------------------------------------------------------- sharing and mutation


def test_one_structure_for_all_that_share_it(place: Place) -> None:
    with place.standing_in():
        g = place.graph(heterogeneous(torch.int64))
        graph = graph_of(g["follows"])
        assert graph.device == place.device
        for same in (g, g.local_var(), g.clone(), copy.deepcopy(g),
                     dgl.edge_type_subgraph(g, ["follows"])):  # fmt: skip
            assert graph_of(same["follows"]) is graph
        back = graph_of(dgl.reverse(g)["follows"])
        assert back.by_dst is graph.by_src and back is graph.reversed()
        assert graph_of(dgl.reverse(dgl.reverse(g))["follows"]) is graph
        held = cached_bytes(g)
        assert held >= graph.nbytes() > 0
        clear_cache(g)
        assert graph_of(g["follows"]) is not None


def test_mutation_drops_the_mirror(place: Place) -> None:
    with place.standing_in():
        g = place.graph(homogeneous(torch.int64))
        shared, before = g.local_var(), graph_of(g)
        for change in (
            lambda: g.add_edges([1, 2], [3, 3]), lambda: g.remove_edges([0, 4]),
            lambda: g.add_nodes(2), lambda: g.remove_nodes([1]),
        ):  # fmt: skip
            old = graph_of(g)
            change()
            new = graph_of(g)
            assert new is not old
            assert (new.num_src, new.num_edges) == (g.num_nodes(), g.num_edges())
            assert type(g._graph) is ResidentIndex
        assert graph_of(shared) is before


def test_freed_with_its_graph(place: Place) -> None:
    with place.standing_in():
        g = place.graph(homogeneous(torch.int64))
        x = g.ndata["x"].requires_grad_()
        with g.local_scope():
            g.ndata["x"] = x
            g.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
            g.ndata["y"].sum().backward()
        watched = weakref.ref(g._graph.relations[0])
        graph = weakref.ref(graph_of(g))
        gc.disable()
        try:
            del g
            assert watched() is None and graph() is None
        finally:
            gc.enable()


def test_uploaded_once(place: Place) -> None:
    g = homogeneous(torch.int64)
    with place.standing_in():
        there = place.graph(g)
        ends = there._graph.relations[0].ends
        for _ in range(2):
            there.in_degrees()
            there.edges()
            dgl.reverse(there).edges()
        assert there._graph.relations[0].ends is ends
        assert there._graph.relations[0].ends[0].data_ptr() == there.edges()[0].data_ptr()


# ---------------------------------------------------------------------- switching


def test_without_acceleration(place: Place) -> None:
    """A resident graph is of no use to stock DGL, which says so; nothing else changes."""
    with place.standing_in():
        there = place.graph(homogeneous(torch.int64))
        with gnn_backend.disabled():
            for use in (there.num_nodes, there.edges, lambda: there.device):
                with pytest.raises(dgl.DGLError):
                    use()
        assert there.num_nodes() == 13
    g = homogeneous(torch.int64)
    assert type(g._graph) is not ResidentIndex


def test_wrong_devices_and_shapes(place: Place) -> None:
    with place.standing_in():
        g = place.graph(homogeneous(torch.int64))
        index = g._graph
        short = torch.zeros(3, 2, device=place.device)
        for call in (
            lambda: dgl.ops.gspmm(g, "copy_lhs", "sum", short, None),
            lambda: dgl.ops.gspmm(g, "copy_rhs", "sum", None, short),
            lambda: dgl.ops.gsddmm(g, "add", short, short),
            lambda: dgl.ops.gspmm(g, "copy_lhs", "sum", g.nodes(), None),
            lambda: dgl.ops.gspmm(g, "mul", "sum", g.ndata["x"], g.edata["w"].double()),
            lambda: dgl.ops.gspmm(g, "add", "sum", g.ndata["x"], torch.zeros(
                40, 2, device=place.device)),
            lambda: dgl.ops.edge_softmax(g, short),
        ):  # fmt: skip
            with pytest.raises(dgl.DGLError):
                call()
        assert g._graph is index
        if place.device.type == "cuda":
            with pytest.raises(dgl.DGLError, match="move one"):
                dgl.ops.gspmm(g, "copy_lhs", "sum", torch.zeros(13, 2), None)


@pytest.mark.parametrize("formats", [["coo"], ["csr"], ["csc"], ["coo", "csr", "csc"]])
def test_edges_are_taken_in_the_order_of_their_ids(formats: list[str]) -> None:
    """From every form of a graph on the CPU, and of each of its relations."""
    whole = heterogeneous(torch.int64)
    g = whole.formats(formats)
    g.create_formats_()
    for number, etype in enumerate(g.canonical_etypes):
        found = mirror.host_ends(g._graph, number)
        wanted = whole.edges(etype=etype, order="eid")
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_taking_the_edges_does_not_copy_them() -> None:
    src, dst = torch.tensor([3, 1, 2]), torch.tensor([0, 1, 1])
    found = mirror.host_ends(dgl.graph((src, dst))._graph)
    assert [end.data_ptr() for end in found] == [src.data_ptr(), dst.data_ptr()]


def test_forked_processes_leave_older_garbage_alone() -> None:
    """Of CUDA memory that several streams have used, nothing but the parent can free it."""
    streams.leave_garbage_to_the_parent()

    class Node:
        pass

    node = Node()
    node.itself = node  # type: ignore[attr-defined]
    collected = weakref.ref(node)
    gc.disable()
    try:
        del node
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0 if collected() is not None else 1)
        assert os.waitpid(child, 0)[1] == 0
        gc.collect()
        assert collected() is None
    finally:
        gc.enable()

"""Transforms of a resident graph against stock DGL, without a detour through the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl
import pytest
import torch

from tests.adapters.dgl.residence.places import (
    IDTYPES,
    Place,
    assert_same,
    ends,
    graphs,
    heterogeneous,
    homogeneous,
)


def ids(g: Any, *values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=g.idtype, device=g.device)


HOMOGENEOUS: dict[str, Callable[[Any], Any]] = {
    "add_self_loop": dgl.add_self_loop,
    "add_self_loop sum": lambda g: dgl.add_self_loop(g, fill_data="sum"),
    "remove_self_loop": dgl.remove_self_loop,
    "add_reverse_edges": lambda g: dgl.add_reverse_edges(g, copy_edata=True),
    "to_bidirected": lambda g: dgl.to_bidirected(g, copy_ndata=True),
    "to_simple": lambda g: dgl.to_simple(g, writeback_mapping=True),
    "to_simple sum": lambda g: dgl.to_simple(g, copy_edata=True, aggregator="sum"),
    "to_simple mean": lambda g: dgl.to_simple(g, copy_edata=True, aggregator="mean"),
    "to_simple first": lambda g: dgl.to_simple(g, copy_edata=True, return_counts=None),
    "reverse": lambda g: dgl.reverse(g, copy_edata=True),
    "twice reversed": lambda g: dgl.reverse(dgl.reverse(g)),
    "add_nodes": lambda g: dgl.add_nodes(g, 3),
    "remove_nodes": lambda g: dgl.remove_nodes(g, ids(g, 0, 2), store_ids=True),
    "add_edges": lambda g: dgl.add_edges(g, ids(g, 0, 1), ids(g, 1, 0)),
    "add_edges beyond": lambda g: dgl.add_edges(g, ids(g, 0, 40), ids(g, 1, 0)),
    "remove_edges": lambda g: dgl.remove_edges(g, ids(g, 0, 5, 7), store_ids=True),
    "subgraph": lambda g: g.subgraph(ids(g, 3, 0, 1)),
    "subgraph of a mask": lambda g: g.subgraph(g.ndata["x"][:, 0] > 0),
    "subgraph, old ids": lambda g: g.subgraph(ids(g, 3, 0, 1), relabel_nodes=False),
    "edge_subgraph": lambda g: g.edge_subgraph(ids(g, 7, 2, 5)),
    "edge_subgraph, old ids": lambda g: g.edge_subgraph(ids(g, 7, 2), relabel_nodes=False),
    "in_subgraph": lambda g: dgl.in_subgraph(g, ids(g, 2, 0)),
    "in_subgraph, new ids": lambda g: dgl.in_subgraph(g, ids(g, 2, 0), relabel_nodes=True),
    "out_subgraph": lambda g: dgl.out_subgraph(g, ids(g, 2, 0)),
    "khop_in_subgraph": lambda g: dgl.khop_in_subgraph(g, ids(g, 1), 2),
    "khop_out_subgraph": lambda g: dgl.khop_out_subgraph(g, ids(g, 1), 2),
    "compact_graphs": lambda g: dgl.compact_graphs([g, dgl.reverse(g)]),
    "compact_graphs, some kept": lambda g: dgl.compact_graphs(g, ids(g, 3, 1)),
    "to_block": lambda g: dgl.to_block(dgl.in_subgraph(g, ids(g, 2, 0)), ids(g, 2, 0)),
    "to_block of all": dgl.to_block,
    "to_block without destinations": lambda g: dgl.to_block(g, include_dst_in_src=False),
    "batch": lambda g: dgl.batch([g, dgl.reverse(g, copy_edata=True), g]),
    "unbatch": lambda g: dgl.unbatch(dgl.batch([g, g])),
    "slice_batch": lambda g: dgl.slice_batch(dgl.batch([g, g]), 1, store_ids=True),
    "merge": lambda g: dgl.merge([g, dgl.reverse(g, copy_edata=True)]),
    "clone": lambda g: g.clone(),
    "int": lambda g: g.int(),
    "formats": lambda g: g.formats(["coo", "csr", "csc"]),
    "norm_by_dst": dgl.norm_by_dst,
    "to_double": dgl.to_double,
    "metapath": lambda g: dgl.metapath_reachable_graph(g, ["_E", "_E", "_E"]),
    "line_graph": lambda g: dgl.line_graph(g, shared=True),
    "line_graph onward": lambda g: dgl.line_graph(g, backtracking=False),
    "methods": lambda g: (g.line_graph(), g.to_simple(), g.reverse()),
    "metapath of one": lambda g: dgl.metapath_reachable_graph(g, ["_E"]),
    "radius": lambda g: dgl.radius_graph(g.ndata["x"], 1.0),
}


@graphs("homogeneous", "dense", "no edges")
@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_homogeneous(place: Place, kind: Any, idtype: torch.dtype, name: str) -> None:
    place.check(HOMOGENEOUS[name], kind(idtype))


HETEROGENEOUS: dict[str, Callable[[Any], Any]] = {
    "reverse": lambda g: dgl.reverse(g, copy_edata=True),
    "to_simple": lambda g: dgl.to_simple(g, writeback_mapping=True),
    "relation": lambda g: (g["follows"], g["user", "likes", "item"], g["liked by"]),
    "relations of one kind": lambda g: g["user", :, "item"],
    "all relations": lambda g: dgl.edge_type_subgraph(g, ["likes", "sells"])["user", :, "item"],
    "edge_type_subgraph": lambda g: dgl.edge_type_subgraph(g, ["sells", "follows"]),
    "node_type_subgraph": lambda g: dgl.node_type_subgraph(g, ["user"]),
    "subgraph": lambda g: g.subgraph({"user": ids(g, 4, 1, 2), "item": ids(g, 6, 0)}),
    "edge_subgraph": lambda g: g.edge_subgraph({"likes": ids(g, 4, 1), "follows": ids(g, 6)}),
    "in_subgraph": lambda g: dgl.in_subgraph(g, {"item": ids(g, 1, 4), "user": ids(g, 0)}),
    "out_subgraph": lambda g: dgl.out_subgraph(g, {"user": ids(g, 1, 4)}, relabel_nodes=True),
    "khop": lambda g: dgl.khop_in_subgraph(g, {"item": ids(g, 1)}, 2),
    "add_edges": lambda g: dgl.add_edges(g, ids(g, 1), ids(g, 2), etype="likes"),
    "remove_edges": lambda g: dgl.remove_edges(g, ids(g, 1, 3), etype="likes"),
    "add_nodes": lambda g: dgl.add_nodes(g, 2, ntype="item"),
    "remove_nodes": lambda g: dgl.remove_nodes(g, ids(g, 1, 3), ntype="user"),
    "add_self_loop": lambda g: dgl.add_self_loop(g, etype="follows"),
    "to_homogeneous": lambda g: dgl.to_homogeneous(g, ndata=["x"], edata=["w"]),
    "batch": lambda g: dgl.batch([g, g]),
    "unbatch": lambda g: dgl.unbatch(dgl.batch([g, g])),
    "slice_batch": lambda g: dgl.slice_batch(dgl.batch([g, g]), 1),
    "compact_graphs": lambda g: dgl.compact_graphs(g, {"item": ids(g, 5)}),
    "to_block": dgl.to_block,
    "to_block of some": lambda g: dgl.to_block(
        dgl.in_subgraph(g, {"item": ids(g, 5)}), {"item": ids(g, 5, 2), "user": ids(g, 1)}
    ),
    "block_to_graph": lambda g: dgl.block_to_graph(dgl.to_block(g)),
    "metapath": lambda g: dgl.metapath_reachable_graph(g, ["follows", "sells"]),
    "line_graph of several relations": dgl.line_graph,
    "metapath without edges": lambda g: dgl.metapath_reachable_graph(g, ["likes", "liked by"]),
    "metapath that does not fit": lambda g: dgl.metapath_reachable_graph(g, ["likes", "follows"]),
    "int": lambda g: g.int().long(),
}


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("name", HETEROGENEOUS)
def test_heterogeneous(place: Place, name: str, idtype: torch.dtype) -> None:
    place.check(HETEROGENEOUS[name], heterogeneous(idtype))


THROUGH_THE_CPU: dict[str, Callable[[Any], Any]] = {
    "khop_graph": lambda g: dgl.khop_graph(g, 2),
    "reorder_graph": lambda g: dgl.reorder_graph(g, edge_permute_algo="dst"),
    "sort_csr_by_tag": lambda g: dgl.sort_csr_by_tag(g, g.nodes() % 3).srcdata["_TAG_OFFSET"],
}


@pytest.mark.parametrize("name", THROUGH_THE_CPU)
def test_detours_answer_too(place: Place, name: str) -> None:
    place.check(THROUGH_THE_CPU[name], homogeneous(torch.int64), detours=9)


def test_transform_modules(place: Place) -> None:
    chain = dgl.Compose(
        [
            dgl.AddReverse(),
            dgl.ToSimple(),
            dgl.AddSelfLoop(),
            dgl.GCNNorm(),
            dgl.RowFeatNormalizer(),
        ]
    )
    place.check(chain, homogeneous(torch.int64))
    paths = dgl.AddMetaPaths({"twice": [("user", "follows", "user")] * 2})
    g = dgl.edge_type_subgraph(heterogeneous(torch.int64), ["follows", "likes"])
    place.check(paths, g, detours=9)


def test_blocks_that_stock_leaves_broken(place: Place) -> None:
    """Stock gives ends that do not exist; here the first is right, the others raise."""
    g = homogeneous(torch.int64)

    def given(g: Any) -> Any:
        return dgl.to_block(g, src_nodes=g.nodes().flip(0))

    block = place.run(given, g)
    assert block.num_src_nodes() == 13
    assert torch.equal(block.srcdata[dgl.NID].cpu(), torch.arange(12, -1, -1))
    src, dst = (end.cpu() for end in block.edges())
    assert torch.equal(block.srcdata[dgl.NID].cpu()[src], g.edges()[0])
    assert torch.equal(block.dstdata[dgl.NID].cpu()[dst], g.edges()[1])
    for bad in (
        lambda g: dgl.to_block(g, ids(g, 0)),
        lambda g: dgl.to_block(g, ids(g, *range(13), 5)),
        lambda g: dgl.to_block(g, src_nodes=ids(g, 0)),
    ):
        with pytest.raises(dgl.DGLError):
            place.run(bad, g)


# ---------------------------------------------------------------------- creation


@pytest.mark.parametrize("idtype", IDTYPES)
def test_created_from_tensors_of_the_device(place: Place, idtype: torch.dtype) -> None:
    with place.standing_in():
        src, dst = (end.to(place.device) for end in ends(6, 5, 12, idtype))
        made = [
            dgl.graph((src, dst), num_nodes=9),
            dgl.graph((src, dst), num_nodes=9, idtype=torch.int32, device=place.device),
            dgl.heterograph({("a", "r", "b"): (src, dst), ("b", "s", "a"): (dst, src)}),
            dgl.create_block((src, dst), 6, 5),
            dgl.bipartite_from_scipy(dgl.heterograph({("a", "r", "b"): (src, dst)}).adj_external(
                scipy_fmt="coo"), "a", "r", "b", device=place.device),
        ]  # fmt: skip
        rows = torch.tensor([0, 2, 2, 3], dtype=idtype, device=place.device)
        cols = torch.tensor([1, 0, 2], dtype=idtype, device=place.device)
        order = torch.tensor([2, 0, 1], dtype=idtype, device=place.device)
        made += [dgl.graph((form, (rows, cols, order))) for form in ("csr", "csc")]
        made += [dgl.graph((form, (rows, cols, order[:0]))) for form in ("csr", "csc")]
    src, dst = src.cpu(), dst.cpu()
    rows, cols, order = rows.cpu(), cols.cpu(), order.cpu()
    wanted = [
        dgl.graph((src, dst), num_nodes=9), dgl.graph((src, dst), num_nodes=9, idtype=torch.int32),
        dgl.heterograph({("a", "r", "b"): (src, dst), ("b", "s", "a"): (dst, src)}),
        dgl.create_block((src, dst), 6, 5),
        dgl.bipartite_from_scipy(dgl.heterograph({("a", "r", "b"): (src, dst)}).adj_external(
            scipy_fmt="coo"), "a", "r", "b"),
    ]  # fmt: skip
    wanted += [dgl.graph((form, (rows, cols, order))) for form in ("csr", "csc")]
    wanted += [dgl.graph((form, (rows, cols, order[:0]))) for form in ("csr", "csc")]
    with place.standing_in():
        assert_same(made, wanted, place.device)


def test_there_and_back(place: Place) -> None:
    g = heterogeneous(torch.int32)
    there = place.graph(g)
    if place.device.type == "cuda":
        back = there.to("cpu")
        assert back.device.type == "cpu" and back.edges(etype="likes")[0].device.type == "cpu"
        assert there.to(place.device) is there
        assert there.to("cuda")._graph.relations[0] is there._graph.relations[0]
    assert_same(place.graph(there.to("cpu") if place.device.type == "cuda" else g), g, place.device)

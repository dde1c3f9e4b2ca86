"""Functions of DGL on resident graphs that no other file here has: each answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import dgl
import pytest
import torch
from dgl import geometry, sampling
from dgl.dataloading import LaborSampler, NeighborSampler

import gnn_backend
from tests.adapters.dgl.residence.places import CpuAlone, Place, heterogeneous, homogeneous

DETOURS = 99  # as many as it takes

EQUAL: dict[str, Callable[[Any], Any]] = {
    "khop_adj": lambda g: dgl.khop_adj(g, 2),
    "shortest_dist": lambda g: dgl.shortest_dist(g),
    "random_walk_pe": lambda g: dgl.random_walk_pe(g, 3),
    "laplacian_lambda_max": lambda g: [round(x, 3) for x in dgl.laplacian_lambda_max(
        dgl.to_bidirected(g))],
    "lap_pe": lambda g: dgl.lap_pe(dgl.to_bidirected(g), 2).abs().sum(1) > 0,
    "topological": lambda g: [x.tolist() for x in dgl.topological_nodes_generator(
        dgl.graph(tuple(torch.tensor(x, device=g.device) for x in ([0, 0, 1], [1, 2, 2]))))],
    "bfs": lambda g: [x.tolist() for x in dgl.bfs_nodes_generator(g, g.nodes()[:1])],
    "dfs": lambda g: [x.tolist() for x in dgl.dfs_edges_generator(g, g.nodes()[:1])],
    "top edges": lambda g: sampling.select_topk(g, 2, "w"),
    "top edges of some": lambda g: sampling.select_topk(g, 1, "w", g.nodes()[2:5], ascending=True),
    "adj_sum_graph": lambda g: by_ends(dgl.adj_sum_graph([weighted(g)] * 2, "w")),
    "adj_product_graph": lambda g: by_ends(dgl.adj_product_graph(weighted(g), weighted(g), "w")),
    "sort_csc_by_tag": lambda g: dgl.sort_csc_by_tag(g, g.nodes() % 3).dstdata["_TAG_OFFSET"],
    "reorder_graph": lambda g: dgl.reorder_graph(g, "rcmk"),
    "node_homophily": lambda g: dgl.node_homophily(g, g.nodes() % 2),
    "neighbours matched": lambda g: geometry.neighbor_matching(
        dgl.to_bidirected(g), relabel_idx=True).numel(),
    "farthest points": lambda g: geometry.farthest_point_sampler(
        g.ndata["x"][None], 4, start_idx=0),
}  # fmt: skip


def weighted(g: Any) -> Any:
    """The simple graph of ``g``, with a weight on every edge and nothing on nodes."""
    g = dgl.to_simple(g, copy_ndata=False)
    g.edata["w"] = 1.0 + torch.arange(g.num_edges(), device=g.device)
    return g


def by_ends(g: Any) -> Any:
    """Edges and weights in an order of their own, for that of sums of matrices is left open."""
    src, dst, eids = g.edges(form="all", order="srcdst")
    return src, dst, g.edata["w"][eids]


ON_CPU = ("khop_adj", "random_walk_pe", "lap_pe")
"""What DGL makes of SciPy's results and leaves on the CPU, whatever the graph's device."""


@pytest.fixture(autouse=True)
def not_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What DGL asserts to be on the CPU is not where the CPU stands in for the device."""
    modules = (dgl.sampling.neighbor, dgl.sampling.node2vec_randomwalk, dgl.sampling.randomwalks)
    for module in modules:
        monkeypatch.setattr(module, "F", CpuAlone(module.F))


@pytest.mark.parametrize("name", EQUAL)
def test_same_as_stock(place: Place, name: str) -> None:
    g = homogeneous(torch.int64)
    found = place.check(EQUAL[name], g, detours=DETOURS, on_cpu=name in ON_CPU)
    assert found is not None, "stock failed"


# ---------------------------------------------------------------------- random draws


def walks(g: Any) -> Iterator[Any]:
    """Nodes along walks [walks, steps], each of them from a graph with one type."""
    start = g.nodes()[:6]
    stop = torch.zeros(4, device=g.device)
    yield sampling.random_walk(g, start, length=4)[0]
    yield sampling.random_walk(g, start, length=4, prob="w", return_eids=True)[0]
    yield sampling.random_walk(g, start, length=4, restart_prob=0.2)[0]
    yield sampling.random_walk(g, start, length=4, restart_prob=stop)[0]
    yield sampling.node2vec_random_walk(g, start, 0.5, 2.0, walk_length=4)


def samples(g: Any) -> Iterator[Any]:
    """Graphs whose edges are edges of ``g``, by their ids."""
    nodes = g.nodes()[3:7]
    yield sampling.sample_labors(g, nodes, 3)[0]
    yield sampling.sample_labors(g, nodes, 3, prob="w", importance_sampling=1)[0]
    yield sampling.sample_neighbors(g, nodes, 2, prob="w", replace=True)
    yield sampling.sample_neighbors(g, nodes, 2, edge_dir="out")


def into_the_past(g: Any) -> Any:
    ordered = dgl.sort_csc_by_tag(g, g.nodes() % 2)
    bias = torch.tensor([1.0, 0.0], device=g.device)
    return sampling.sample_neighbors_biased(ordered, g.nodes()[3:7], 4, bias)


def check_walks(g: Any, device: torch.device, parent: Any) -> None:
    pairs = set(zip(*(end.tolist() for end in parent.edges()), strict=True))
    for walk in walks(g):
        assert walk.device == device
        for path in walk.tolist():
            steps = itertools.pairwise(path)
            assert all(b == -1 or (a, b) in pairs for a, b in steps)


def check_samples(g: Any, device: torch.device, parent: Any) -> None:
    src, dst = parent.edges()
    for found in samples(g):
        assert found.device == device and found.num_edges() > 0
        eids = found.edata[dgl.EID].cpu()
        assert torch.equal(found.edges()[0].cpu(), src[eids])
        assert torch.equal(found.edges()[1].cpu(), dst[eids])


def test_draws(place: Place) -> None:
    g = homogeneous(torch.int64)
    there = place.graph(g)
    with place.standing_in():
        check_walks(there, place.device, g)
        check_samples(there, place.device, g)
        found = into_the_past(there)
        assert found.device == place.device
        assert not (found.edges()[0] % 2).any()


def test_draws_along_metapaths(place: Place) -> None:
    g = heterogeneous(torch.int64)
    there = place.graph(g)
    with place.standing_in():
        nodes = torch.tensor([0, 3, 5], device=place.device)
        walk, types = sampling.random_walk(there, nodes, metapath=["follows", "likes"])
        assert walk.device == types.device == place.device
        kinds = [g.ntypes[kind] for kind in types.tolist()]
        assert kinds == ["user", "user", "item"]
        joined, _, lengths, _ = sampling.pack_traces(walk, types)
        assert joined.device == lengths.device == place.device
        back = dgl.edge_type_subgraph(there, ["likes"])
        back = dgl.heterograph(
            {("user", "likes", "item"): back.edges(), ("item", "by", "user"): back.edges()[::-1]},
            {"user": 9, "item": 7},
        )
        sampler = sampling.PinSAGESampler(back, "item", "user", 3, 0.5, 4, 2)
        assert sampler(torch.tensor([0, 1], device=place.device)).device == place.device


@pytest.mark.parametrize("sampler", [NeighborSampler([3, 2]), LaborSampler([3, 2])])
def test_samplers_of_blocks(place: Place, sampler: Any) -> None:
    there = place.graph(homogeneous(torch.int64))
    with place.standing_in():
        seeds = torch.tensor([4, 1], device=place.device)
        inputs, outputs, blocks = sampler.sample(there, seeds)
        assert torch.equal(outputs, seeds) and inputs.device == place.device
        assert all(block.device == place.device for block in blocks)


def test_packed_traces(place: Place) -> None:
    traces = torch.tensor([[1, 2, -1], [3, -1, -1], [1, 1, 1]])
    for dtype in (torch.int32, torch.int64):
        place.check(sampling.pack_traces, traces.to(dtype), torch.tensor([0, 1, 0]).to(dtype))


@pytest.mark.parametrize("features", [True, False])
def test_top_edges_of_several_types(place: Place, features: bool) -> None:
    def run(g: Any, items: torch.Tensor) -> Any:
        g = dgl.edge_type_subgraph(g, ["follows", "likes"])
        k = {"follows": 2, "likes": 1}
        return g.select_topk(k, "w", {"item": items}, copy_ndata=features, copy_edata=features)

    place.check(run, heterogeneous(torch.int64), torch.tensor([1, 5]), detours=DETOURS)


@pytest.mark.gpu
def test_draws_from_a_pinned_graph() -> None:
    """Seeds on the device, structure pinned in the memory of the CPU."""
    with gnn_backend.enabled(hosts="dgl"):
        g = homogeneous(torch.int64)
        g.pin_memory_()
        try:
            device = torch.device("cuda", torch.cuda.current_device())
            nodes = torch.arange(3, 7, device=device)
            walk, _ = sampling.random_walk(g, nodes, length=4)
            assert walk.device == device
            for found in (
                sampling.sample_labors(g, nodes, 3)[0],
                sampling.sample_neighbors(g, nodes, 2),
                dgl.in_subgraph(g, nodes),
            ):
                assert found.device == device
                eids = found.edata[dgl.EID].cpu()
                assert torch.equal(found.edges()[1].cpu(), g.edges()[1][eids])
        finally:
            g.unpin_memory_()

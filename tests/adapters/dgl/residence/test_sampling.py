"""Sampling on the device: what must hold of every draw, and its distribution."""

from __future__ import annotations

import itertools
from typing import Any

import dgl
import pytest
import torch
from dgl.dataloading import (
    DataLoader,
    MultiLayerFullNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
    negative_sampler,
)

import gnn_backend
from tests.adapters.dgl.residence.places import (
    IDTYPES,
    Place,
    heterogeneous,
    homogeneous,
)


def triples(g: Any, etype: Any = None) -> list[tuple[int, int, int]]:
    """(source, destination, id in the parent) of every edge."""
    src, dst = g.edges(etype=etype)
    eids = g.edges[etype].data[dgl.EID] if etype else g.edata[dgl.EID]
    return list(zip(src.tolist(), dst.tolist(), eids.tolist(), strict=True))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("weighted", [None, "p", "mask"])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 3, 50])
@pytest.mark.parametrize("idtype", IDTYPES)
def test_what_is_drawn(
    place: Place, fanout: int, weighted: str | None, edge_dir: str, replace: bool,
    idtype: torch.dtype,
) -> None:  # fmt: skip
    g = homogeneous(idtype, 12, 90)
    weight = torch.rand(90)
    weight[::3] = 0
    weight[g.edges()[0] == 4] = 0
    g.edata["p"], g.edata["mask"] = weight, weight > 0
    seeds = torch.tensor([7, 0, 4, 11, 3], dtype=idtype)

    def sample(g: Any, seeds: Any) -> Any:
        return dgl.sampling.sample_neighbors(
            g, seeds, fanout, edge_dir=edge_dir, prob=weighted, replace=replace
        )

    wanted = sample(g, seeds)
    with gnn_backend.profile() as profile:
        found = place.run(sample, g, seeds)
    assert not profile.detours
    assert found.idtype == idtype and found.device == place.device
    assert found.num_nodes() == 12
    assert found.edata.keys() == wanted.edata.keys() and found.ndata.keys() == wanted.ndata.keys()
    parent = dict(enumerate(zip(*(end.tolist() for end in g.edges()), strict=True)))
    drawn = triples(found)
    assert all(parent[e] == (u, v) for u, v, e in drawn)
    assert torch.equal(found.edata["w"].cpu(), g.edata["w"][found.edata[dgl.EID].cpu().long()])
    if weighted:
        assert all(weight[e] > 0 for _, _, e in drawn)
    if not replace or fanout == -1:
        assert len(drawn) == len(set(drawn))
    end = 1 if edge_dir == "in" else 0
    count = [[d[end] for d in drawn].count(s) for s in range(12)]
    degree = wanted.in_degrees() if edge_dir == "in" else wanted.out_degrees()
    assert count == degree.tolist()  # as many as stock draws at every node
    order = [d[end] for d in drawn]
    assert order == sorted(order, key=seeds.tolist().index)  # in the order of the seeds


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_distribution(place: Place, replace: bool, weighted: bool) -> None:
    """Relative frequency of each of a node's edges over many draws."""
    rounds, degree, fanout = 4000, 5, 2
    star = dgl.graph((torch.arange(degree), torch.full((degree,), degree)), num_nodes=degree + 1)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0]) if weighted else torch.ones(degree)
    star.edata["p"] = weight
    dgl.seed(3)
    g = place.graph(star)
    seeds = torch.full((rounds,), degree, device=place.device)
    with place.standing_in():
        found = dgl.sampling.sample_neighbors(
            g, seeds, fanout, prob="p" if weighted else None, replace=replace
        )
    count = torch.bincount(found.edata[dgl.EID].cpu(), minlength=degree).double() / rounds
    p = weight.double() / weight.sum()
    if replace:
        wanted = fanout * p
    else:  # drawn first, or second after another
        wanted = p + sum(
            p[other] * torch.where(torch.arange(degree) == other, 0, p / (1 - p[other]))
            for other in range(degree)
        )
    assert torch.allclose(count, wanted, atol=0.05), (count, wanted)
    assert count.sum() == fanout


def test_seeds(place: Place) -> None:
    g, nodes = place.graph(homogeneous(torch.int64, 50, 600)), None
    with place.standing_in():
        nodes = g.nodes()

        def draw() -> list[int]:
            return dgl.sampling.sample_neighbors(g, nodes, 3).edata[dgl.EID].tolist()

        dgl.seed(1)
        first, second = draw(), draw()
        dgl.seed(1)
        assert draw() == first != second


def test_several_relations(place: Place) -> None:
    g = heterogeneous(torch.int64)
    seeds = {"user": torch.tensor([3, 1]), "item": torch.tensor([0, 6, 2])}
    fanout = {e: k for k, e in enumerate(g.canonical_etypes)}

    def sample(g: Any, seeds: Any) -> Any:
        return dgl.sampling.sample_neighbors(g, seeds, fanout)

    wanted, found = sample(g, seeds), place.run(sample, g, seeds)
    for etype in g.canonical_etypes:
        assert found.num_edges(etype) == wanted.num_edges(etype)
        parents = set(zip(*(end.tolist() for end in g.edges(form="all", etype=etype)), strict=True))
        assert set(triples(found, etype)) <= parents

    def everything(g: Any, seeds: Any) -> Any:
        return dgl.sampling.sample_neighbors(g, seeds, -1)

    wanted, found = everything(g, seeds), place.run(everything, g, seeds)
    for etype in g.canonical_etypes:
        assert sorted(triples(found, etype)) == sorted(triples(wanted, etype))


def test_bad_arguments(place: Place) -> None:
    g = place.graph(homogeneous(torch.int64))
    with place.standing_in():
        nodes = g.nodes()[:2]
        for change in ({"edge_dir": "up"}, {"prob": torch.rand(3, device=place.device)}):
            if "prob" in change:
                g.edata["short"] = torch.rand(40, 1, device=place.device)[:, 0]
                change = {"prob": [change["prob"]]}
            with pytest.raises(dgl.DGLError):
                dgl.sampling.sample_neighbors(g, nodes, 2, **change)


# ---------------------------------------------------------------------- loaders


def check_blocks(g: Any, seeds: Any, input_nodes: Any, output_nodes: Any, blocks: Any) -> None:
    """A minibatch hangs together and its edges are the graph's."""
    ends = [end.tolist() for end in g.edges()]
    assert torch.equal(output_nodes.cpu(), seeds)
    assert torch.equal(blocks[0].srcdata[dgl.NID], input_nodes)
    assert torch.equal(blocks[-1].dstdata[dgl.NID], output_nodes)
    for block, following in itertools.pairwise(blocks):
        assert torch.equal(block.dstdata[dgl.NID], following.srcdata[dgl.NID])
    for block in blocks:
        assert block.is_block
        dst = block.dstdata[dgl.NID]
        assert torch.equal(block.srcdata[dgl.NID][: len(dst)], dst)
        src, to = (end.long() for end in block.edges())
        for u, v, e in zip(block.srcdata[dgl.NID][src].tolist(), dst[to].tolist(),
                           block.edata[dgl.EID].tolist(), strict=True):  # fmt: skip
            assert (ends[0][e], ends[1][e]) == (u, v)
        assert torch.equal(block.srcdata["x"].cpu(), g.ndata["x"][block.srcdata[dgl.NID].cpu()])


@pytest.mark.parametrize("sampler", [
    NeighborSampler([2, 3]), NeighborSampler([2, 3], prob="w"),
    NeighborSampler([2, 3], replace=True), MultiLayerFullNeighborSampler(2),
    NeighborSampler([3], prefetch_node_feats=["x"]),
])  # fmt: skip
def test_loader_on_the_device(place: Place, sampler: Any) -> None:
    g = homogeneous(torch.int64, 60, 500)
    there = place.graph(g)
    with place.standing_in(), gnn_backend.profile() as profile:
        seeds = torch.arange(0, 60, 2, device=place.device)
        loader = DataLoader(there, seeds, sampler, device=place.device, batch_size=8)
        sampler.fused = False  # else the stand-in, whose device is the CPU, takes the CPU's path
        count = 0
        for number, (inputs, outputs, blocks) in enumerate(loader):
            assert blocks[0].device == place.device
            wanted = torch.arange(0, 60, 2)[8 * number : 8 * number + 8]
            check_blocks(g, wanted, inputs, outputs, blocks)
            count += len(outputs)
        assert count == 30
    assert not profile.detours


@pytest.mark.gpu
@pytest.mark.parametrize("uva", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_loader_from_the_cpu(uva: bool, workers: int) -> None:
    """The graph stays on the CPU; its minibatches arrive on the device."""
    if uva and workers:
        pytest.skip("stock refuses workers with use_uva")
    g = homogeneous(torch.int64, 60, 500)
    with gnn_backend.enabled(hosts="dgl"):
        device = torch.device("cuda", torch.cuda.current_device())
        seeds = torch.arange(0, 60, 2)
        loader = DataLoader(
            g, seeds.to(device) if uva else seeds, NeighborSampler([2, 3]),
            device=device, batch_size=8, use_uva=uva, num_workers=workers,
        )  # fmt: skip
        found = []
        for inputs, outputs, blocks in loader:
            assert blocks[0].device == device and inputs.device == device
            first = int(torch.searchsorted(seeds, outputs[0].cpu()))  # workers take turns
            check_blocks(g, seeds[first : first + 8], inputs, outputs, blocks)
            found += outputs.tolist()
        assert sorted(found) == seeds.tolist()
        g.unpin_memory_()
        assert not g.is_pinned()


@pytest.mark.parametrize("exclude", [None, "self", "reverse_id"])
def test_edge_prediction(place: Place, exclude: str | None) -> None:
    g = dgl.add_reverse_edges(homogeneous(torch.int64, 60, 300), exclude_self=False)
    reverse = torch.cat([torch.arange(300, 600), torch.arange(300)])
    there = place.graph(g)
    with place.standing_in():
        inner = NeighborSampler([4], fused=False)
        extra = {"reverse_eids": reverse.to(place.device)} if exclude == "reverse_id" else {}
        sampler = as_edge_prediction_sampler(
            inner, exclude=exclude, negative_sampler=negative_sampler.Uniform(2), **extra
        )
        eids = torch.arange(0, 100, 3, device=place.device)
        loader = DataLoader(there, eids, sampler, device=place.device, batch_size=10)
        for number, (inputs, pairs, negatives, blocks) in enumerate(loader):
            batch = eids[10 * number : 10 * number + 10]
            assert torch.equal(pairs.edata[dgl.EID], batch)
            assert negatives.num_edges() == 2 * len(batch)
            assert pairs.num_nodes() == negatives.num_nodes() == blocks[-1].num_dst_nodes()
            src, dst = pairs.edges()
            nodes = pairs.ndata[dgl.NID]
            want_src, want_dst = there.find_edges(batch)
            assert torch.equal(nodes[src], want_src) and torch.equal(nodes[dst], want_dst)
            taken = set(blocks[-1].edata[dgl.EID].tolist())
            if exclude:
                assert not taken & set(batch.tolist())
            if exclude == "reverse_id":
                assert not taken & set(reverse[batch.cpu()].tolist())
            assert torch.equal(inputs, blocks[0].srcdata[dgl.NID])


def test_full_neighbourhood_is_that_of_stock(place: Place) -> None:
    g = homogeneous(torch.int64, 30, 200)
    seeds = torch.tensor([4, 9, 1])
    sampler = MultiLayerFullNeighborSampler(2, fused=False)
    _, _, wanted = sampler.sample_blocks(g, seeds)
    with place.standing_in():
        _, _, found = sampler.sample_blocks(place.graph(g), seeds.to(place.device))

    def in_parent(block: Any) -> list[tuple[int, ...]]:
        src, dst = (end.long() for end in block.edges())
        ends = block.srcdata[dgl.NID][src], block.dstdata[dgl.NID][dst], block.edata[dgl.EID]
        return sorted(zip(*(end.tolist() for end in ends), strict=True))

    for ours, stock in zip(found, wanted, strict=True):
        assert in_parent(ours) == in_parent(stock)

"""Relations built on the device: every index as on the CPU, without waiting for the device."""

from __future__ import annotations

import torch

from gnn_backend import datasets
from gnn_backend.graph import Graph
from gnn_backend.graph.relations import Relations
from gnn_backend.ir.domains import Domain
from tests.gpu import support
from tests.gpu.support import table
from tests.graph.relational_support import check, typed_graph, without_edges

pytestmark = support.MARKS


@table("ascending", (False, True))
def test_every_domain_in_every_other(ascending: bool) -> None:
    for seed in range(4):
        check(typed_graph(seed, ascending=ascending), support.DEVICE)
    check(without_edges(), support.DEVICE)


@table("num_types", (1, 200, 300, 40_000))
def test_as_on_the_cpu(num_types: int) -> None:
    """Keys of one, two and four bytes."""
    edges = datasets.rmat(2000, 100_000)
    generator = torch.Generator().manual_seed(0)
    types = torch.randint(num_types, (100_000,), generator=generator)
    found = {}
    for device in ("cpu", support.DEVICE):
        graph = Graph.from_edge_index(edges.to(device), 2000, 2000)
        relations = Relations(graph, types.to(device), num_types)
        incidence = relations.incidence(Domain.DST_PAIR, Domain.EDGE)
        found[device] = [
            relations.index(Domain.EDGE, Domain.SRC_PAIR),
            relations.by_type(Domain.EDGE, Domain.EDGE_TYPE).order,
            incidence.indptr, incidence.index(Domain.SRC), incidence.splits(64).heavy_rows,
        ]  # fmt: skip
    for ours, expected in zip(found[support.DEVICE], found["cpu"], strict=True):
        assert (ours is None) == (expected is None)
        assert expected is None or torch.equal(ours.cpu(), expected)


def test_copies_to_the_host_are_few() -> None:
    """One for the checks, one for each kind of pairs, segments and splits; none for an index."""
    graph = Graph.from_edge_index(datasets.rmat(500, 5000, device=support.DEVICE), 500, 500)
    types = torch.arange(5000, device=support.DEVICE) % 7
    graph.by_src.edge_ids  # noqa: B018 (the graph's own)
    relations = Relations(graph, types, 7)
    pairs = relations.num(Domain.SRC_PAIR), relations.num(Domain.DST_PAIR)
    assert min(pairs) > 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        for rows in (Domain.SRC_PAIR, Domain.DST_PAIR, Domain.SRC, Domain.DST, Domain.EDGE_TYPE):
            incidence = relations.incidence(rows, Domain.EDGE)
            for domain in (Domain.SRC, Domain.DST, Domain.SRC_PAIR, Domain.EDGE_TYPE):
                incidence.index(domain)
        relations.degree(Domain.DST_PAIR)
    finally:
        torch.cuda.set_sync_debug_mode("default")

"""Parts of graphs and graphs renumbered, with all that belongs to their nodes and edges."""

from __future__ import annotations

import torch

from gnn_backend import datasets


def test_sampled_edges_keep_their_order_and_nodes_their_features() -> None:
    pairs = torch.cartesian_prod(torch.arange(100), torch.arange(5))  # each edge once
    edges = pairs[torch.randperm(500, generator=torch.Generator().manual_seed(0))].T
    x = torch.arange(100.0)[:, None]
    graph = datasets.GraphData("g", edges, 100, x=x, splits={"train": x[:, 0] < 50})
    sample = datasets.sample_edges(graph, 40)
    assert sample.num_edges == 40 and sample.x is not None
    ids = sample.x[:, 0].long()  # a feature is its node's old id
    original = ids[sample.edge_index]
    columns = [edges.T.tolist().index(pair) for pair in original.T.tolist()]
    assert columns == sorted(columns)
    assert torch.equal(sample.splits["train"], ids < 50)
    assert datasets.sample_edges(graph, 500) is graph


def test_shuffling_moves_what_belongs_to_the_nodes() -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
    y = torch.arange(4) + 10
    graph = datasets.GraphData("path", edges, 4, x=y[:, None].float(), y=y, splits={"val": y > 11})
    mixed = datasets.shuffled(graph, seed=1)
    assert mixed.x is not None and mixed.y is not None
    assert torch.equal(mixed.y[mixed.edge_index], y[edges])
    assert torch.equal(mixed.x[:, 0].long(), mixed.y)
    assert torch.equal(mixed.splits["val"], mixed.y > 11)


def typed() -> datasets.RelationalData:
    return datasets.RelationalData(
        "typed",
        torch.tensor([[0, 1, 2, 2], [1, 2, 3, 0]]),
        4,
        edge_type=torch.tensor([0, 1, 1, 0]),
        num_edge_types=2,
        node_type=torch.arange(4) + 10,
        edge_type_names=("likes", "knows"),
        triples={"train": torch.tensor([[0, 0, 1]]), "test": torch.tensor([[3, 1, 2]])},
    )


def test_shuffling_moves_types_and_triples() -> None:
    graph = typed()
    mixed = datasets.shuffled(graph, seed=3)
    assert isinstance(mixed, datasets.RelationalData) and mixed.node_type is not None
    assert graph.node_type is not None
    assert torch.equal(mixed.node_type[mixed.edge_index], graph.node_type[graph.edge_index])
    assert torch.equal(mixed.edge_type, graph.edge_type)
    for part, triples in graph.triples.items():
        ends = mixed.triples[part][:, [0, 2]]
        assert torch.equal(mixed.node_type[ends], graph.node_type[triples[:, [0, 2]]])


def test_sampled_edges_keep_their_types() -> None:
    graph = typed()
    sample = datasets.sample_edges(graph, 2, seed=1)
    assert isinstance(sample, datasets.RelationalData) and sample.node_type is not None
    kept = (sample.node_type[sample.edge_index] - 10).t().tolist()
    numbers = [graph.edge_index.t().tolist().index(ends) for ends in kept]
    assert torch.equal(sample.edge_type, graph.edge_type[numbers]) and not sample.triples


def test_reverses_have_types_of_their_own() -> None:
    graph = typed()
    both = graph.with_reverses()
    assert torch.equal(both.edge_index[:, 4:], graph.edge_index.flip(0))
    assert both.edge_type.tolist() == [0, 1, 1, 0, 2, 3, 3, 2] and both.num_edge_types == 4
    assert both.edge_type_names == ("likes", "knows", "likes, reversed", "knows, reversed")


def test_moved_with_all_its_tensors() -> None:
    moved = typed().to("meta")
    assert moved.node_type is not None
    tensors = [moved.edge_index, moved.edge_type, moved.node_type, *moved.triples.values()]
    assert {t.device.type for t in tensors} == {"meta"}

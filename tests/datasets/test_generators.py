"""Seeded graphs: streams, ranges, degrees."""

from __future__ import annotations

import pytest
import torch

from gnn_backend import datasets
from gnn_backend.errors import InvalidArgument

STREAM = [[88, 32, 95, 48, 88, 42], [88, 88, 73, 21, 16, 68]]


def test_rmat_is_seeded_in_range_and_heavy_tailed() -> None:
    edges = datasets.rmat(1000, 20_000)
    assert edges.shape == (2, 20_000) and edges.dtype == torch.int64
    assert int(edges.min()) >= 0 and int(edges.max()) < 1000
    assert torch.equal(edges, datasets.rmat(1000, 20_000))
    assert not torch.equal(edges, datasets.rmat(1000, 20_000, seed=1))
    degrees = edges[1].bincount(minlength=1000)
    assert degrees.max() > 10 * degrees.double().mean()


def test_rmat_stream_does_not_change() -> None:
    """Published figures name a graph by its seed: the first edges of that stream."""
    edges = datasets.rmat(100, 6, seed=0)
    assert edges.tolist() == STREAM


@pytest.mark.parametrize("sizes", [(1, 5), (65, 4), (3, 0)])
def test_rmat_small(sizes: tuple[int, int]) -> None:
    edges = datasets.rmat(*sizes)
    assert edges.shape == (2, sizes[1])
    assert not edges.numel() or int(edges.max()) < sizes[0]


def test_block_model_is_dense_within_blocks_alone() -> None:
    edges = datasets.block_model(300, 64, 0.5)
    src, dst = edges
    assert edges.dtype == torch.int64 and torch.equal(src // 64, dst // 64)
    assert int(edges.max()) < 300 and int(src.min()) >= 0
    assert edges.unique(dim=1).shape == edges.shape
    pairs = 4 * 64**2 + 44**2
    assert edges.shape[1] == pytest.approx(0.5 * pairs, rel=0.05)
    assert torch.equal(edges, datasets.block_model(300, 64, 0.5))
    assert not torch.equal(edges, datasets.block_model(300, 64, 0.5, seed=1))
    assert datasets.block_model(10, 16, 1.0).shape == (2, 100)
    assert datasets.block_model(0, 16, 1.0).shape == (2, 0)


@pytest.mark.parametrize("arguments", [(-1, 4, 0.5), (4, 0, 0.5), (4, 4, 1.5)])
def test_no_block_model(arguments: tuple[int, int, float]) -> None:
    with pytest.raises(InvalidArgument, match="not a graph"):
        datasets.block_model(*arguments)


def test_grid_is_seeded_symmetric_and_of_degree_2_to_4() -> None:
    edges = datasets.grid(30, 40)
    assert torch.equal(edges, datasets.grid(30, 40))
    assert not torch.equal(edges, datasets.grid(30, 40, seed=1))
    degrees = edges[1].bincount(minlength=1200)
    assert sorted(set(degrees.tolist())) == [2, 3, 4]
    step = (edges[0] - edges[1]).abs()
    assert sorted(set(step.tolist())) == [1, 40]
    pairs = {(u, v) for u, v in edges.t().tolist()}
    assert len(pairs) == edges.shape[1] and pairs == {(v, u) for u, v in pairs}
    full = datasets.grid(30, 40, removed=0.0)
    assert full.shape[1] == 2 * (29 * 40 + 30 * 39)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 5), (2, 2)])
def test_small_grids(sizes: tuple[int, int]) -> None:
    rows, columns = sizes
    edges = datasets.grid(*sizes, removed=1.0)
    assert edges.shape[1] == 2 * ((rows - 1) * columns + rows * (columns - 1))


@pytest.mark.parametrize("bad", [(0, 5, 0.5), (5, 0, 0.5), (2, 2, 1.5)])
def test_what_is_no_grid_is_refused(bad: tuple[int, int, float]) -> None:
    with pytest.raises(InvalidArgument, match="not a grid"):
        datasets.grid(bad[0], bad[1], removed=bad[2])


def recipe(num_nodes: int, num_edges: int, num_types: int, seed: int) -> list[torch.Tensor]:
    """What published figures of typed graphs are measured on, step by step."""
    g = torch.Generator().manual_seed(seed)
    shares = torch.exp(1.22 * torch.randn(num_types, generator=g))
    types = torch.multinomial(shares, num_edges, replacement=True, generator=g).sort().values
    order = torch.randperm(num_nodes, generator=g)
    ends = []
    for _ in range(2):
        p = torch.arange(1, num_nodes + 1, dtype=torch.float64).pow(-0.9)
        draw = torch.rand(num_edges, dtype=torch.float64, generator=g)
        rank = torch.searchsorted((p / p.sum()).cumsum(0), draw)
        ends.append(order[rank.clamp(max=num_nodes - 1)])
    return [torch.stack(ends), types]


@pytest.mark.parametrize("sizes", [(50, 400, 7, 0), (1, 3, 1, 1), (300, 20, 40, 2)])
def test_relational_stream_does_not_change(sizes: tuple[int, int, int, int]) -> None:
    *counts, seed = sizes
    edges, types = datasets.relational(*counts, seed=seed)
    expected = recipe(*sizes)
    assert torch.equal(edges, expected[0]) and torch.equal(types, expected[1])


def test_types_have_unlike_sizes_and_nodes_unlike_degrees() -> None:
    edges, types = datasets.relational(1000, 50_000, 100)
    sizes = types.bincount(minlength=100).double()
    assert sizes.log1p().std() == pytest.approx(1.22, rel=0.3)
    for end in edges:
        degrees = end.bincount(minlength=1000)
        assert degrees.max() > 20 * degrees.double().mean()


def test_edges_of_a_schema_join_nodes_of_its_types() -> None:
    schema = datasets.Schema(
        {"a": 30, "b": 1, "c": 5}, {("a", "x", "c"): 40, ("b", "y", "a"): 7, ("c", "z", "c"): 0}
    )
    graph = datasets.heterogeneous("g", schema)
    assert graph.node_type is not None
    assert graph.node_type.tolist() == [0] * 30 + [1] + [2] * 5
    assert graph.edge_type.tolist() == [0] * 40 + [1] * 7
    joined = graph.node_type[graph.edge_index]
    assert joined.t().tolist() == [[0, 2]] * 40 + [[1, 0]] * 7
    assert graph.edge_type_names == ("a x c", "b y a", "c z c")
    assert (graph.num_node_types, graph.num_edge_types) == (3, 3)
    assert torch.equal(graph.edge_index, datasets.heterogeneous("g", schema).edge_index)


def test_a_schema_of_given_sizes() -> None:
    schema = datasets.random_schema(100, 2000, 6, 9, seed=1)
    assert len(schema.nodes) == 6 and len(schema.edges) == 9
    assert sum(schema.nodes.values()) == 100 and min(schema.nodes.values()) >= 1
    assert sum(schema.edges.values()) == 2000
    assert schema == datasets.random_schema(100, 2000, 6, 9, seed=1)
    assert sum(datasets.random_schema(3, 0, 3, 2).edges.values()) == 0


def test_what_is_no_typed_graph_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not a graph"):
        datasets.relational(0, 5, 2)
    with pytest.raises(InvalidArgument, match="not a graph"):
        datasets.random_schema(3, 10, 4, 2)

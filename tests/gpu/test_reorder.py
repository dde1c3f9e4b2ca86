"""Reordered graphs on the device: rows as before bit for bit, and communities found by sorts."""

from __future__ import annotations

import torch

from gnn_backend import datasets
from gnn_backend.graph import Graph
from gnn_backend.ops import aggregate
from tests.gpu import support
from tests.gpu.support import table
from tests.ops.support import problem, run

pytestmark = support.MARKS
METHODS = ("natural", "degree", "community")  # rcm takes SciPy, which need not be there


@table("method", METHODS)
def test_attention(method: str) -> None:
    p = problem(device=support.DEVICE)
    expected = run(p)
    p.graph = p.graph.reorder(method)
    found = run(p)
    for name, value in found.items():
        if name == "att":  # a sum over all rows, in another order
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(value, expected[name]), name


@table("method", METHODS)
def test_reductions(method: str) -> None:
    edges = datasets.rmat(5000, 200_000, device=support.DEVICE)
    graph = Graph.from_edge_index(edges, 5000, 5000)
    x = torch.randn(5000, 32, device=support.DEVICE)
    for reduce in ("sum", "max"):
        expected = aggregate(graph, x, reduce)
        assert torch.equal(aggregate(graph.reorder(method), x, reduce), expected)


def test_planted_blocks_stand_together() -> None:
    drawn = datasets.block_model(4096, 64, 0.5, device=support.DEVICE)
    data = datasets.shuffled(datasets.GraphData("blocks", drawn, 4096, y=torch.arange(4096) // 64))
    assert data.y is not None
    graph = Graph.from_edge_index(data.edge_index, 4096, 4096)
    order = graph.reorder("community").order
    assert order is not None
    block = data.y[order.dst.long().cpu()]
    assert int((block[1:] == block[:-1]).sum()) > 0.95 * 4096
    again = Graph.from_edge_index(data.edge_index, 4096, 4096).reorder("community").order
    assert again is not None and torch.equal(order.dst, again.dst)

"""The graph transformer layer as PyG's TransformerConv, on every kind of graph."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.nn import GraphTransformerConv
from gnn_backend.ops.dropout import Replaying, recording
from gnn_backend.profile import profile
from tests.adapters.pyg.helpers import edges, normal

NODES, WIDTH, EDGE_WIDTH = 12, 6, 3
NAMES = {"query": "query", "key": "key", "value": "value", "edge": "edge", "skip": "skip",
         "gate": "beta"}  # fmt: skip


def stock_of(conv: GraphTransformerConv, **options: Any) -> torch.nn.Module:
    nn = pytest.importorskip("torch_geometric").nn
    stock = nn.TransformerConv(conv.in_channels, conv.out_channels, conv.heads, **options)
    weights = {
        f"lin_{NAMES[name.split('.')[0]]}.{name.split('.')[1]}": tensor
        for name, tensor in conv.state_dict().items()
    }
    kept = stock.state_dict()
    stock.load_state_dict(kept | weights)  # without root_weight stock has a projection unused
    return stock


def differentiate(out: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(out, inputs, normal(*out.shape, seed=9)))


@pytest.mark.parametrize(
    ("edge_dim", "concat", "skip", "dropout"),
    [(None, True, "none", 0.0), (3, True, "beta", 0.3), (3, False, "root", 0.0),
     (None, False, "beta", 0.3)],
)  # fmt: skip
def test_equals_pyg(
    edge_dim: int | None, concat: bool, skip: str, dropout: float, twin_engine: None
) -> None:
    options = {"edge_dim": edge_dim, "concat": concat, "dropout": dropout,
               "root_weight": skip != "none", "beta": skip == "beta"}  # fmt: skip
    torch.manual_seed(0)
    conv = GraphTransformerConv(WIDTH, 4, 2, **options)
    stock = stock_of(conv, **options)
    edge_index, x = edges(NODES, NODES), normal(NODES, WIDTH).requires_grad_()
    given = [normal(edge_index.shape[1], EDGE_WIDTH, seed=2).requires_grad_()] if edge_dim else []
    with recording() as masks:
        got = conv(edge_index, x, *given)
    with Replaying(masks):
        want = stock(x, edge_index, *given)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    for g, w in zip(differentiate(got, x, *given), differentiate(want, x, *given), strict=True):
        torch.testing.assert_close(g, w, rtol=2e-5, atol=5e-5)


def test_every_kind_of_graph_and_the_kernels() -> None:
    dgl = pytest.importorskip("dgl")
    edge_index = edges(NODES, 9)
    x = normal(NODES, WIDTH), normal(9, WIDTH, seed=1)
    conv = GraphTransformerConv(WIDTH, 4, 2)
    src, dst = edge_index
    graphs = [
        edge_index,
        edge_index.int(),
        Graph.from_edge_index(edge_index, NODES, 9),
        dgl.heterograph({("a", "to", "b"): (src, dst)}, {"a": NODES, "b": 9}),
        dgl.create_block((src, dst), num_src_nodes=NODES, num_dst_nodes=9),
    ]
    with profile() as record:
        results = [conv(graph, x) for graph in graphs]
    assert sum(record.launches.values()) >= len(graphs)
    for other in results[1:]:
        assert torch.equal(other, results[0])
    torch.testing.assert_close(conv(graphs[4], x[0]), conv(edge_index, (x[0], x[0][:9])))
    square = dgl.graph(tuple(edges(NODES, NODES)), num_nodes=NODES)
    assert torch.equal(conv(square, x[0]), conv(edges(NODES, NODES), x[0]))


def test_returned_attention(twin_engine: None) -> None:
    edge_index = edges(NODES, NODES)
    conv = GraphTransformerConv(WIDTH, 4, 3).eval()
    out, attention = conv(edge_index, normal(NODES, WIDTH), return_attention=True)
    assert torch.equal(out, conv(edge_index, normal(NODES, WIDTH)))
    sums = torch.zeros(NODES, 3).index_add(0, edge_index[1], attention)
    torch.testing.assert_close(sums[edge_index[1].unique()], torch.ones(11, 3))


def test_what_cannot_be_meant() -> None:
    edge_index, x = edges(NODES, NODES), normal(NODES, WIDTH)
    conv = GraphTransformerConv(WIDTH, 4, edge_dim=3)
    with pytest.raises(InvalidArgument, match="edge_features: not as the layer was made"):
        conv(edge_index, x)
    with pytest.raises(InvalidArgument, match="edge_features: wrong shape"):
        conv(edge_index, x, torch.ones(2, 3))
    with pytest.raises(InvalidArgument, match="graph: no graph; got list"):
        GraphTransformerConv(WIDTH, 4)([[0], [1]], x)
    with pytest.raises(InvalidArgument, match="x: wrong number of rows"):
        GraphTransformerConv(WIDTH, 4)(Graph.from_edge_index(edge_index, 14, 14), x)
    for name, value in itertools.product(("out_channels", "heads"), (0, 1.5)):
        with pytest.raises(InvalidArgument, match=name):
            GraphTransformerConv(WIDTH, **{"out_channels": 4, name: value})
    with pytest.raises(InvalidArgument, match="dropout"):
        GraphTransformerConv(WIDTH, 4, dropout=2)
    with pytest.raises(InvalidArgument, match="beta"):
        GraphTransformerConv(WIDTH, 4, beta=True, root_weight=False)


def test_parameters() -> None:
    conv = GraphTransformerConv((5, 6), 4, 2, edge_dim=3, beta=True)
    assert repr(conv).startswith("GraphTransformerConv(\n  (5, 6), 4, heads=2")
    before = [p.clone() for p in conv.parameters()]
    conv.reset_parameters()
    assert not any(torch.equal(a, b) for a, b in zip(before, conv.parameters(), strict=True))

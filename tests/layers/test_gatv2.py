"""GATv2 after its projections, against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.layers.combination import combine
from gnn_backend.layers.gatv2 import gatv2

NUM_SRC, NUM_DST, HEADS, DIM = 5, 4, 2, 3
EDGES = torch.tensor([[0, 1, 1, 4, 2, 2], [0, 0, 1, 1, 2, 2]])  # destination 3 has no in-edge


def tensors(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((NUM_SRC, HEADS, DIM), (NUM_DST, HEADS, DIM), (HEADS, DIM))
    return tuple(
        torch.randn(*s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes
    )


def attend(x_src: Tensor, x_dst: Tensor, att: Tensor, slope: float) -> Tensor:
    """The formula, one destination at a time."""
    out = torch.zeros(NUM_DST, HEADS, DIM, dtype=x_src.dtype)
    for i in range(NUM_DST):
        values = x_src[EDGES[0, EDGES[1] == i]]
        if len(values):
            hidden = torch.nn.functional.leaky_relu(values + x_dst[i], slope)
            out[i] = ((hidden * att).sum(-1, keepdim=True).softmax(0) * values).sum(0)
    return out


@pytest.mark.parametrize("slope", [0.2, 0.0, 1.3])
@pytest.mark.parametrize("heads", ["keep", "concat", "mean"])
def test_formula(heads: str, slope: float) -> None:
    x_src, x_dst, att = tensors()
    graph = Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)
    out = attend(x_src, x_dst, att, slope)
    want = {"keep": out, "concat": out.reshape(NUM_DST, -1), "mean": out.mean(1)}[heads]
    residual = torch.ones_like(want)
    bias = torch.arange(want.shape[-1], dtype=want.dtype)
    got = gatv2(
        graph, x_src, x_dst, att, negative_slope=slope, heads=heads, residual=residual, bias=bias
    )
    assert torch.allclose(got, want + residual + bias, rtol=1e-12, atol=1e-12)


def test_a_row_without_edges_is_residual_and_bias() -> None:
    graph = Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)
    residual, bias = torch.full((NUM_DST, HEADS * DIM), 2.0), torch.ones(HEADS * DIM)
    got = gatv2(graph, *tensors(torch.float32), heads="concat", residual=residual, bias=bias)
    assert torch.equal(got[3], torch.full((HEADS * DIM,), 3.0))


def test_shapes_must_fit_the_graph() -> None:
    graph = Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)
    x_src, _, att = tensors()
    with pytest.raises(InvalidArgument, match="x_dst"):
        gatv2(graph, x_src, x_src, att)


def test_combine() -> None:
    out = torch.arange(12.0).view(2, 2, 3)
    assert combine(out, heads="keep") is out
    assert combine(out, heads="concat").tolist() == out.view(2, 6).tolist()
    assert combine(out[:0], heads="concat").shape == (0, 6)
    assert combine(out, heads="mean", bias=torch.ones(3))[0].tolist() == [2.5, 3.5, 4.5]
    half = combine(out.half(), heads="concat", bias=torch.ones(6))
    assert half.dtype == torch.float32  # promoted, as the stock layers' additions do

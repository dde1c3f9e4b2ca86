"""Dot products of the ends of edges, in the caller's order, on the CPU and on the kernels."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.datasets import uniform
from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops import edge_dot as module
from gnn_backend.ops.edge_dot import edge_dot, node_dot
from gnn_backend.runtime import cpu_call
from tests.ops.support import edges_with_hubs
from tests.runtime.cpu_cases import LargestTensor

EDGES, NUM_SRC, NUM_DST = edges_with_hubs()
GRAPH = Graph.from_edge_index(EDGES, NUM_SRC, NUM_DST)


def tables(dtype: torch.dtype = torch.float32, dim: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(n, 2, dim, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for n in (NUM_SRC, NUM_DST)
    ]


def check() -> None:
    given = tables()
    got = edge_dot(GRAPH, *given)
    want = (given[0][EDGES[0]] * given[1][EDGES[1]]).sum(-1)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    cotangent = torch.randn(want.shape, generator=torch.Generator().manual_seed(1))
    for g, w in zip(
        torch.autograd.grad(got, given, cotangent),
        torch.autograd.grad(want, given, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("work", [1, 1 << 17])
def test_on_the_cpu(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many blocks, which split rows, and in one."""
    monkeypatch.setattr(cpu_call, "BLOCK_WORK", work)
    check()


@pytest.mark.parametrize("chunk", [70, 1 << 22])
def test_without_kernels(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    monkeypatch.setattr(module, "numba_edges", lambda *_: None)
    check()


def test_16_bits_are_rounded_once() -> None:
    given = [t.detach().requires_grad_() for t in tables(torch.bfloat16)]
    got, want = edge_dot(GRAPH, *given), edge_dot(GRAPH, *(t.float() for t in given))
    assert got.dtype == torch.bfloat16 and torch.equal(got, want.bfloat16())
    for g, w in zip(
        torch.autograd.grad(got.float().sum(), given),
        torch.autograd.grad(want.sum(), given),
        strict=True,
    ):
        assert torch.equal(g, w)


@pytest.mark.thorough
def test_no_products_are_written() -> None:
    edges = uniform(40, 40, 20_000)
    graph = Graph.from_edge_index(edges, 40, 40)
    x = torch.randn(40, 2, 64, requires_grad=True)
    with LargestTensor() as largest:
        edge_dot(graph, x, x).square().sum().backward()
        node_dot((graph,), x).square().sum().backward()
    assert 0 < largest.size <= 20_000 * 2 * 4 * 2  # of 64 times as much


def test_ends_that_are_one_table_and_are_not_contiguous() -> None:
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 2, 2], [1, 0, 0, 2]]), 3, 3)
    x = torch.randn(3, 4, 2, dtype=torch.float64).transpose(1, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: edge_dot(graph, t, t), x)


def check_node_dot(dtype: torch.dtype = torch.float32) -> None:
    """Of two graphs and of none of the edges of a third, against ends that are gathered."""
    ends = [edges_of(seed, count) for seed, count in ((0, 90), (1, 0), (2, 40))]
    x = torch.randn(30, 2, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    x.requires_grad_()
    got = node_dot(tuple(Graph.from_edge_index(e, 30, 30) for e in ends), x)
    src, dst = torch.cat(ends, dim=1)
    want = (x.float()[src] * x.float()[dst]).sum(-1)
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.1}
    )
    torch.testing.assert_close(got, want.to(dtype), **tolerance)
    cotangent = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    (g,) = torch.autograd.grad(got, x, cotangent)
    (w,) = torch.autograd.grad(want, x, cotangent.float())
    torch.testing.assert_close(g, w, **tolerance)


def edges_of(seed: int, count: int) -> torch.Tensor:
    return torch.randint(30, (2, count), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_table_for_several_graphs(dtype: torch.dtype) -> None:
    check_node_dot(dtype)


def test_one_table_for_several_graphs_on_the_kernels(emulator: None) -> None:
    check_node_dot()


def test_gradients_of_both_orders_of_one_table() -> None:
    graphs = tuple(Graph.from_edge_index(edges_of(s, 8) % 4, 4, 4) for s in (0, 1))
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: node_dot(graphs, t), x)
    assert torch.autograd.gradgradcheck(lambda t: node_dot(graphs, t), x)


def test_on_the_kernels(emulator: None) -> None:
    check()


def test_gradients_of_both_orders() -> None:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 0, 1]])
    graph = Graph.from_edge_index(edges, 3, 2)
    given = [
        t[:n].detach().requires_grad_()
        for t, n in zip(tables(torch.float64, 2), (3, 2), strict=True)
    ]
    assert torch.autograd.gradcheck(lambda *t: edge_dot(graph, *t), given)
    assert torch.autograd.gradgradcheck(lambda *t: edge_dot(graph, *t), given)


def test_no_edges() -> None:
    graph = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64), 0, 3)
    out = edge_dot(graph, torch.ones(0, 2, 4), torch.ones(3, 2, 4))
    assert out.shape == (0, 2)


def test_wrong_inputs_are_named() -> None:
    x_src, x_dst = tables()
    with pytest.raises(InvalidArgument, match="x_dst: wrong shape"):
        edge_dot(GRAPH, x_src, x_dst[:, :, :3])
    with pytest.raises(InvalidArgument, match="graph: not a graph"):
        edge_dot(None, x_src, x_dst)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="graphs: of two kinds of nodes"):
        node_dot((GRAPH,), x_src)

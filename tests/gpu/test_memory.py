"""Memory: nothing edge-wise, little scratch, and tables and edge lists past 2^31 elements."""

from __future__ import annotations

import torch
from torch import Tensor

from gnn_backend.graph import Graph
from tests.gpu import support
from tests.gpu.support import GIB, table
from tests.ops.support import (
    NAMES,
    Problem,
    attention,
    check,
    gradients,
    problem,
    reference,
)

pytestmark = support.MARKS


def peak_share(p: Problem) -> float:
    """Peak memory of forward and backward over inputs, output and their gradients."""
    out = attention(p)  # kernels, splits and the transposed adjacency are there
    gradients(out, p)
    inputs = [p.operands[n] for n in NAMES]
    counted = sum(2 * t.numel() * t.element_size() for t in (*inputs, out))
    del out
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = sum(t.numel() * t.element_size() for t in (*inputs, p.cotangent))
    before = torch.cuda.memory_allocated()
    out = attention(p)
    found = gradients(out, p)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before + held
    assert all(tensor.isfinite().all() for tensor in (out, *found.values()))
    return peak / counted


def random_edges(num_nodes: int, num_edges: int, hub: int) -> Tensor:
    edges = torch.randint(0, num_nodes, (2, num_edges), device=support.DEVICE)
    edges[1, :hub] = 5
    edges[0, -hub:] = 6
    return edges


@table("dtype", [torch.float32, torch.bfloat16])
@table("hub", [1, 100_000])
def test_peak_on_two_million_edges(dtype: torch.dtype, hub: int) -> None:
    """One value of float32 an edge and head alone would be a tenth of what is counted here."""
    num_nodes = 150_000
    p = problem(2, 64, dtype, edges=(random_edges(num_nodes, 2_000_000, hub), num_nodes, num_nodes),
                device=support.DEVICE)  # fmt: skip
    assert peak_share(p) <= 1.2


def test_a_graph_gives_its_memory_back() -> None:
    edges = random_edges(10_000, 500_000, 1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    graph = Graph.from_edge_index(edges, 10_000, 10_000)
    first = graph.nbytes()
    graph.splits("src", 64), graph.splits("dst", 64)
    assert graph.nbytes() > first
    assert torch.cuda.memory_allocated() - before >= graph.nbytes()
    graph.clear()
    assert graph.nbytes() == first
    del graph
    assert torch.cuda.memory_allocated() == before


def test_rows_past_two_to_the_31_elements() -> None:
    support.needs_memory(32 * GIB)
    dim, far = 1024, 2**21
    rows = far + 64
    used = torch.tensor([0, 3, 5, far - 1, far, far + 7, far + 63])
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 7, (2, 300), generator=generator)
    near = problem(1, dim, torch.float16, edges=(edges, 7, 7), device=support.DEVICE)

    def spread(values: Tensor) -> Tensor:
        out = torch.zeros(rows, 1, dim, dtype=values.dtype, device=values.device)
        out[used.to(values.device)] = values.detach()
        return out

    operands = {n: spread(near.operands[n]).requires_grad_() for n in ("x_src", "x_dst")}
    operands["att"] = near.operands["att"]
    graph = Graph.from_edge_index(used[edges].to(support.DEVICE), rows, rows)
    with support.chunks_of(16):
        p = Problem(graph, operands, spread(near.cotangent))
        out = attention(p)
        got = {"out": out.detach(), **gradients(out, p)}
    del out, p, operands
    place = used.to(support.DEVICE)
    for name in ("out", "x_src", "x_dst"):
        assert int(got[name].count_nonzero(dim=2).count_nonzero()) == 7  # zeros elsewhere
        got[name] = got[name][place]
    check(got, reference(near), torch.float16)


def test_edges_past_two_to_the_31() -> None:
    """2^31 edges and more, in rows of 1024 that repeat; forward and the gradient of x_dst."""
    support.needs_memory(20 * GIB)
    degree, extra, num_src = 1024, 3, 1000
    rows = 2**31 // degree + extra
    one = torch.arange(degree, dtype=torch.int32, device=support.DEVICE) % num_src
    indices = one.repeat(rows)
    indptr = torch.arange(rows + 1, device=support.DEVICE) * degree
    graph = Graph.from_csr(indptr, indices, num_src)
    assert graph.num_edges > 2**31 and graph.by_dst.indptr.dtype == torch.int64
    ends = torch.arange(extra, device=one.device).repeat_interleave(degree)
    last = torch.stack([one.long().repeat(extra), ends])
    near = problem(1, 8, edges=(last, num_src, extra), device=support.DEVICE)
    want = reference(near)
    x_dst = torch.zeros(rows, 1, 8, device=support.DEVICE)
    x_dst[-extra:] = near.operands["x_dst"].detach()
    x_dst.requires_grad_()
    cotangent = torch.zeros_like(x_dst)
    cotangent[-extra:] = near.cotangent
    operands = {n: near.operands[n].detach() for n in ("x_src", "att")} | {"x_dst": x_dst}
    p = Problem(graph, operands, cotangent)
    out = attention(p)
    (grad,) = torch.autograd.grad(out, x_dst, cotangent)
    check({"out": out[-extra:], "x_dst": grad[-extra:]}, want, torch.float32, ("out", "x_dst"))
    assert not grad[:-extra].any() and torch.equal(out[0], out[rows - extra - 1])

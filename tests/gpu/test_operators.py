"""The sparse operators on CUDA against plain torch in float64, and each run against the next."""

from __future__ import annotations

import functools
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from gnn_backend.graph import Graph
from gnn_backend.ops.broadcast import broadcast
from gnn_backend.ops.csr import csrmask, csrmm, csrsum
from gnn_backend.ops.edge_softmax import edge_softmax, edge_softmax_backward
from gnn_backend.ops.edgewise import gsddmm
from gnn_backend.ops.segment import scatter_add, segment_reduce, segment_reduce_backward
from gnn_backend.ops.segment_mm import (
    gather_mm,
    gather_mm_scatter,
    segment_mm,
    segment_mm_backward_b,
)
from gnn_backend.ops.spmm import gspmm
from gnn_backend.profile import profile
from gnn_backend.runtime.compile import cubin, target_for
from gnn_backend.runtime.sparse import rows as sparse_rows
from gnn_backend.runtime.sparse.instances import (
    fast_units,
    merged_columns,
    reduce_merge_unit,
    spmm_unit,
)
from gnn_backend.runtime.sparse.layout import NAMES, columns_for
from tests.gpu import support
from tests.gpu.support import table
from tests.gpu.test_attention import heavy_tailed
from tests.ops.operators import (
    ALL_GRAPHS,
    DTYPES,
    FAST,
    OPS,
    REDUCES,
    SHAPES,
    TABLE,
    check_edge_softmax,
    check_gsddmm,
    check_gspmm,
    close,
    draw,
    reduced,
    winners,
)
from tests.ops.support import edges_with_hubs

pytestmark = support.MARKS
DEVICE = support.DEVICE
HUBS = "hubs both ways"


def chunks_of(length: int) -> AbstractContextManager[Any]:
    """Cut rows of graphs made inside into tasks of so many edges."""
    return mock.patch.object(sparse_rows, "chunk_of", lambda *_: length)


def graph_of(name: str) -> tuple[Graph, torch.Tensor]:
    edges, num_src, num_dst = ALL_GRAPHS[name]
    edges = edges.to(DEVICE)
    return Graph.from_edge_index(edges, num_src, num_dst), edges


@functools.lru_cache(maxsize=1)
def compile_tables() -> None:
    """Compile what the tables need, on all cores, before anything waits for one."""
    units = {*fast_units(), *(reduce_merge_unit(name, 1, False) for name in NAMES.values())}
    for op, reduce, dtype, u, e in (*TABLE, *FAST):
        pattern = broadcast(None if op == "copy_rhs" else u, None if op == "copy_lhs" else e)
        name = NAMES[dtype]
        columns = columns_for(name, pattern.width, pattern.accesses, pattern.dim)
        kind = "sum" if reduce == "mean" else reduce
        units.add(reduce_merge_unit(name, merged_columns(name, pattern.width), False))
        units.add(spmm_unit(op, kind, name, columns, pattern.accesses, False))
    arch = target_for(torch.cuda.get_device_capability())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda unit: cubin(unit, arch), units))


def operand(rows: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return draw(rows, shape, dtype, seed).to(DEVICE)


@table("op, reduce, dtype, u, e", [*TABLE, *FAST])
def test_gspmm(
    op: str, reduce: str, dtype: torch.dtype, u: tuple[int, ...], e: tuple[int, ...]
) -> None:
    compile_tables()
    graph, edges = graph_of(HUBS)
    given = operand(graph.num_src, u, dtype, 1), operand(graph.num_edges, e, dtype, 2)
    for chunk in (8, 1000):
        with chunks_of(chunk), profile() as record:
            check_gspmm(graph, edges, op, reduce, *given)
        assert {target for target, _ in record.launches} == {"cuda"}


@table("name", ALL_GRAPHS)
@table("reduce", REDUCES)
def test_gspmm_graphs(name: str, reduce: str) -> None:
    graph, edges = graph_of(name)
    u, e = operand(graph.num_src, (2, 4), torch.float32, 1), operand(graph.num_edges, (2, 1),
                                                                   torch.float32, 2)  # fmt: skip
    v = operand(graph.num_dst, (5,), torch.float32, 3)
    with chunks_of(8):
        check_gspmm(graph, edges, "mul", reduce, u, e)
        check_gspmm(graph, edges, "copy_lhs", reduce, v, None, reverse=True)


@table("num_src, num_dst", [(0, 0), (4, 0), (0, 4), (4, 6)])
def test_no_edges(num_src: int, num_dst: int) -> None:
    edges = torch.zeros(2, 0, dtype=torch.int64, device=DEVICE)
    graph = Graph.from_edge_index(edges, num_src, num_dst)
    u, e = torch.ones(num_src, 3, device=DEVICE), torch.ones(0, 3, device=DEVICE)
    for reduce in REDUCES:
        check_gspmm(graph, edges, "mul", reduce, u, e)
    assert gsddmm(graph, "copy_rhs", None, e, "u", "e").shape == (0, 3)
    assert edge_softmax(graph, e).shape == (0, 3)


@table("op", OPS)
@table("targets", [a + b for a, b in itertools.product("uve", repeat=2)])
def test_gsddmm(op: str, targets: str) -> None:
    graph, edges = graph_of(HUBS)
    counts = {"u": graph.num_src, "v": graph.num_dst, "e": graph.num_edges}
    which = OPS.index(op) + 3 * "uve".index(targets[0]) + "uve".index(targets[1])
    dtype = DTYPES[which % 4]
    shapes = SHAPES[which * 5 % len(SHAPES)]
    lhs, rhs = (operand(counts[t], s, dtype, i)
                for i, (t, s) in enumerate(zip(targets, shapes, strict=True)))  # fmt: skip
    with chunks_of(8):
        check_gsddmm(graph, edges, op, lhs, rhs, (targets[0], targets[1]))


@table("left, right", [((2, 64), (2, 64)), ((128,), (128,)), ((3, 20), (3, 20)), ((600,), (600,)),
                       ((5, 7), (5, 7)), ((2, 1, 8), (3, 8)), ((), ())])  # fmt: skip
@table("dtype", DTYPES)
def test_dot(left: tuple[int, ...], right: tuple[int, ...], dtype: torch.dtype) -> None:
    graph, edges = graph_of(HUBS)
    for targets, rows in (("uv", graph.num_dst), ("ue", graph.num_edges)):
        lhs, rhs = operand(graph.num_src, left, dtype, 1), operand(rows, right, dtype, 2)
        with chunks_of(8):
            check_gsddmm(graph, edges, "dot", lhs, rhs, (targets[0], targets[1]))


@table("shape", [(), (2,), (8,), (3, 5), (130,)])
@table("dtype", DTYPES)
@table("norm_by", ["dst", "src"])
def test_edge_softmax(shape: tuple[int, ...], dtype: torch.dtype, norm_by: str) -> None:
    graph, edges = graph_of(HUBS)
    logits, grad = operand(graph.num_edges, shape, dtype, 1), operand(graph.num_edges, shape,
                                                                      dtype, 2)  # fmt: skip
    for chunk in (8, 1000):
        with chunks_of(chunk):
            check_edge_softmax(graph, edges, logits, grad, norm_by)


@table("dtype", [torch.float32, torch.bfloat16])
@table("shape", [(2, 64), (47,)])
def test_a_graph_of_real_size(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """With the shipped chunks and grids; three runs give the same bits."""
    edges, num_src, num_dst = heavy_tailed()
    edges = edges.to(DEVICE)
    graph = Graph.from_edge_index(edges, num_src, num_dst)
    u = operand(num_src, shape, dtype, 1)
    scalar = (*shape[:-1], 1)
    e = operand(graph.num_edges, scalar, dtype, 2)
    for reduce in REDUCES:
        first = check_gspmm(graph, edges, "mul", reduce, u, e)
        check_gspmm(graph, edges, "copy_lhs", reduce, operand(num_dst, shape, dtype, 3), None,
                    reverse=True)  # fmt: skip
        for _ in range(3):
            again = gspmm(graph, "mul", reduce, u, e)
            pairs = zip(first, again, strict=True)
            assert all(a is b or torch.equal(a, b) for a, b in pairs)
    v = operand(num_dst, shape, dtype, 4)
    check_gsddmm(graph, edges, "add", u, v, ("u", "v"))
    check_gsddmm(graph, edges, "dot", u, v, ("u", "v"))
    logits = operand(graph.num_edges, (2,), dtype, 5)
    found = check_edge_softmax(graph, edges, logits, logits.flip(0), "dst", 4)
    again = edge_softmax(graph, logits), edge_softmax_backward(graph, found[0], logits.flip(0))
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@table("dtype", DTYPES)
@table("op", REDUCES)
def test_segments(op: str, dtype: torch.dtype) -> None:
    lengths = torch.tensor([0, 3, 1, 0, 7000, 9, 8, 1, 0], device=DEVICE)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    count = int(offsets[-1])
    rows = torch.repeat_interleave(torch.arange(9, device=DEVICE), lengths)
    x = operand(count, (2, 12), dtype, 1)
    out, arg = segment_reduce(op, x, offsets)
    edges = torch.stack([rows, rows])
    want = reduced(edges, 9, op, x.double())
    close(out, want, dtype, 2)
    if arg is not None:
        places = torch.arange(count, device=DEVICE)
        place = winners(edges, 9, want, x.double(), places)
        assert torch.equal(arg, torch.where(want.isinf(), -1, place))
        grad = segment_reduce_backward(torch.ones_like(out), arg, count)
        assert grad.sum() == (arg >= 0).sum()


@table("dtype", DTYPES)
def test_scatter_add(dtype: torch.dtype) -> None:
    index = torch.cat([torch.full((5000,), 3), torch.arange(600) % 17]).to(DEVICE)
    x = operand(5600, (5,), dtype, 1)
    want = torch.zeros(20, 5, dtype=torch.float64, device=DEVICE).index_add(0, index, x.double())
    first = scatter_add(x, index, 20)
    close(first, want, dtype, 2)
    assert torch.equal(first, scatter_add(x, index, 20))
    support.raises(ValueError, lambda: scatter_add(x, index, 10), "index: out of range")


@table("dtype", [torch.float32, torch.bfloat16])
@table("where", ["cpu", DEVICE])
def test_segment_and_gather_mm(dtype: torch.dtype, where: str) -> None:
    """bfloat16 goes through torch's grouped product on GPUs that have it."""
    lengths = torch.tensor([30, 0, 500, 1])
    a, b = torch.randn(531, 64, device=DEVICE), torch.randn(4, 64, 32, device=DEVICE)
    grad = torch.randn(531, 32, device=DEVICE)
    a, b, grad = a.to(dtype), b.to(dtype), grad.to(dtype)
    parts, grads = a.double().split(lengths.tolist()), grad.double().split(lengths.tolist())
    limit = 2e-2 if dtype == torch.bfloat16 else 1e-4

    def near(got: torch.Tensor, want: torch.Tensor) -> None:
        assert got.dtype == dtype and got.shape == want.shape
        assert (got.double() - want).abs().max() <= limit * want.abs().max()

    sizes = lengths.to(where)
    near(segment_mm(a, b, sizes), torch.cat([p @ b[r].double() for r, p in enumerate(parts)]))
    back = torch.cat([g @ b[r].double().t() for r, g in enumerate(grads)])
    near(segment_mm(grad, b, sizes, transposed=True), back)
    want = torch.stack([p.t() @ g for p, g in zip(parts, grads, strict=True)])
    near(segment_mm_backward_b(a, grad, sizes), want)
    index = torch.randint(0, 4, (531,), device=DEVICE)
    each = torch.bmm(a.double().unsqueeze(1), b.double()[index]).squeeze(1)
    near(gather_mm(a, b, None, index), each)
    outer = torch.zeros(4, 64, 32, dtype=torch.float64, device=DEVICE)
    outer.index_add_(0, index, a.double().unsqueeze(2) * grad.double().unsqueeze(1))
    near(gather_mm_scatter(a, grad, 4, index_c=index), outer)


def test_csr() -> None:
    edges, num_src, num_dst = edges_with_hubs()
    graph = Graph.from_edge_index(edges.to(DEVICE), num_src, num_dst)
    back = Graph.from_edge_index(edges.flip(0).to(DEVICE), num_dst, num_src)
    weights = torch.randn(graph.num_edges, device=DEVICE)
    dense = torch.zeros(num_src, num_dst, device=DEVICE)
    dense.index_put_(tuple(edges.to(DEVICE)), weights, accumulate=True)

    def as_dense(matrix: object) -> torch.Tensor:
        m = matrix
        return torch.sparse_csr_tensor(m.indptr, m.indices, m.weights,  # type: ignore[attr-defined]
                                       (m.num_rows, m.num_cols)).to_dense()  # type: ignore[attr-defined]  # fmt: skip

    product = as_dense(csrmm(graph, weights, back, weights))
    torch.testing.assert_close(product, dense @ dense.t(), rtol=1e-4, atol=1e-4)
    total = as_dense(csrsum([graph, graph], [weights, weights]))
    torch.testing.assert_close(total, 2 * dense, rtol=1e-5, atol=1e-5)
    assert torch.isin(csrmask(graph, weights, graph), weights).all()


def test_captured_in_a_cuda_graph() -> None:
    """Nothing waits for the device once the graph's parts are built."""
    graph, _ = graph_of(HUBS)
    u = torch.randn(graph.num_src, 2, 64, device=DEVICE)
    v = torch.randn(graph.num_dst, 2, 64, device=DEVICE)
    e = torch.randn(graph.num_edges, 2, 1, device=DEVICE)

    def step() -> tuple[torch.Tensor, ...]:
        total, _, _ = gspmm(graph, "mul", "mean", u, e)
        most, source, edge = gspmm(graph, "add", "max", u, e)
        softmax = edge_softmax(graph, gsddmm(graph, "dot", u, v))
        return total, most, source, edge, softmax, edge_softmax_backward(graph, softmax, e)

    with chunks_of(8):
        want = step()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            got = step()
    for scale in (1, 2):
        u.mul_(scale)
        captured.replay()
        with chunks_of(8):
            want = step()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_rows_past_two_to_the_31_elements() -> None:
    """Node and edge tables of over 2^31 values, in bfloat16."""
    width, count = 1024, (1 << 21) + 50
    support.needs_memory(9 * count * width * 2)
    far = torch.tensor([3, count - 40, count - 1], device=DEVICE)
    edges = far[torch.tensor([[0, 1, 2, 2, 1], [1, 2, 0, 2, 2]], device=DEVICE)]
    graph = Graph.from_edge_index(edges, count, count)
    u = torch.zeros(count, width, dtype=torch.bfloat16, device=DEVICE)
    u[far] = torch.randn(3, width, device=DEVICE).bfloat16()
    out, arg, _ = gspmm(graph, "copy_lhs", "max", u, None)
    assert arg is not None and torch.equal(out[far[1]], u[far[0]]) and (arg[far[0]] == far[2]).all()
    best = torch.maximum(torch.maximum(u[far[1]], u[far[2]]), u[far[1]])
    assert torch.equal(out[far[2]], best)
    del out, arg
    ring = torch.arange(count, device=DEVICE)
    graph = Graph.from_edge_index(torch.stack([ring, ring.flip(0)]), count, count)
    e = gsddmm(graph, "copy_lhs", u, None)
    assert torch.equal(e[far], u[far])
    total, _, _ = gspmm(graph, "copy_rhs", "sum", None, e)
    assert torch.equal(total[count - 1 - far], u[far])

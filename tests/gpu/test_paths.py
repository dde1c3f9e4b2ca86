"""Sums by cuSPARSE and over tiles on CUDA, against the sums over rows; and their choice."""

from __future__ import annotations

import gc
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from gnn_backend import config, datasets
from gnn_backend.graph import Graph
from gnn_backend.ops import aggregate
from gnn_backend.profile import profile
from gnn_backend.runtime import autotune
from gnn_backend.runtime.sparse import cusparse
from gnn_backend.runtime.sparse.cusparse_library import library
from tests.gpu import support
from tests.gpu.support import table
from tests.gpu.test_aggregation import captured
from tests.gpu.test_attention import heavy_tailed
from tests.gpu.test_block_sparse import allowing_tf32
from tests.ops.support import same_bits
from tests.runtime.block_cases import GRAPHS
from tests.runtime.sparse.sums import Sum, check_sum, close, run

pytestmark = support.MARKS
DEVICE = support.DEVICE
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def named(tensors: list[Tensor]) -> dict[str, Tensor]:
    return {str(index): tensor for index, tensor in enumerate(tensors)}


@table("name", GRAPHS)
@table("values", [0, 1])
def test_cusparse(name: str, values: int) -> None:
    """Widths that are whole accesses, and not; forward, and both gradients."""
    for heads, dim in ((2, 64), (1, 7), (1, 512)):
        case = Sum(GRAPHS[name], F32, heads, dim, values, device=DEVICE)
        with profile() as record:
            check_sum(case, "cusparse")
        ran = record.launches["cuda", "cusparseSpMM"]
        assert ran == 2 or GRAPHS[name][0].shape[1] == 0


def test_cusparse_means() -> None:
    with profile() as record:
        check_sum(Sum(GRAPHS["hubs"], F32, 2, 64, 0, "mean", DEVICE), "cusparse")
        check_sum(Sum(GRAPHS["hubs"], BF16, 2, 64, 0, "mean", DEVICE), "cusparse")
    assert any("not precise" in choice for choice in record.choices)
    assert record.launches["cuda", "cusparseSpMM"] == 2


def test_cusparse_with_infinities() -> None:
    case = Sum(GRAPHS["hubs"], F32, 1, 16, device=DEVICE)

    def spoil(x: Tensor) -> None:
        x[3, 0, 2], x[5, 0, 4] = torch.nan, torch.inf

    close(run(case, "cusparse", spoil), run(case, "rows", spoil), F32)


@table("path", ["cusparse", "tiles"])
@table("weighted", [False, True])
def test_captured_in_a_cuda_graph(path: str, weighted: bool) -> None:
    edges, num_src, num_dst = heavy_tailed()
    graph = Graph.from_edge_index(edges.to(DEVICE), num_src, num_dst)
    dtype = F32 if path == "cusparse" else BF16
    x = torch.randn(num_src, 128, device=DEVICE).to(dtype)
    weights = torch.rand(edges.shape[1], device=DEVICE).to(dtype) if weighted else None
    message = "mul" if weighted else "copy"
    kept: list[Tensor] = []
    with torch.no_grad(), config.override(aggregation_path=path):
        aggregate(graph, x, "sum", edge=weights, message=message)
        recording = captured(
            lambda: kept.append(aggregate(graph, x, "sum", edge=weights, message=message))
        )
        for scale in (1.0, 2.0, -0.5):
            x.mul_(scale)
            recording.replay()
            torch.cuda.synchronize()
            want = aggregate(graph, x, "sum", edge=weights, message=message)
            close([kept[0]], [want], dtype)


def test_streams_at_the_same_time() -> None:
    """Each has a workspace of its own; the values of one reach nothing of another."""
    edges, num_src, num_dst = heavy_tailed()
    graph = Graph.from_edge_index(edges.to(DEVICE), num_src, num_dst)
    tables = [torch.randn(num_src, 64, device=DEVICE) for _ in range(4)]
    want = [cusparse.product(graph, "dst", x) for x in tables]
    torch.cuda.synchronize()
    streams, got = [torch.cuda.Stream() for _ in tables], []
    for _ in range(5):
        for stream, x in zip(streams, tables, strict=True):
            with torch.cuda.stream(stream):
                got.append(cusparse.product(graph, "dst", x))
    torch.cuda.synchronize()
    close(got, [want[i % len(want)] for i in range(len(got))], F32)
    (plan,) = graph.plans["cuSPARSE"].values()
    assert len(plan._lanes) == cusparse.MOST_LANES and plan.workspace_bytes() > 0


def test_a_stream_that_starts_late() -> None:
    edges, num_src, num_dst = heavy_tailed()
    graph = Graph.from_edge_index(edges.to(DEVICE), num_src, num_dst)
    values = torch.randn(num_src, 64, device=DEVICE)
    want = cusparse.product(graph, "dst", values)
    late = torch.zeros_like(values)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(values)
        got = cusparse.product(graph, "dst", late)
    stream.synchronize()
    close([got], [want], F32)


def test_memory_goes_with_the_graph() -> None:
    edges, num_src, num_dst = heavy_tailed()
    x = torch.randn(num_src, 64, device=DEVICE)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        graph = Graph.from_edge_index(edges.to(DEVICE), num_src, num_dst)
        for width in range(4, 64, 4):
            cusparse.product(graph, "dst", x[:, :width].contiguous())
        assert len(graph.plans["cuSPARSE"]) == cusparse.MOST_PLANS
        del graph
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_an_error_says_what_to_do() -> None:
    found = library(torch.cuda.current_device())
    assert found is not None
    support.raises(RuntimeError, lambda: found.csr(-1, 1, 1, 16, 16, 16), "=rows")


@table("name", GRAPHS)
@table("dtype", [BF16, F16, F32])
@table("values", [0, 1, 3])
def test_tiles(name: str, dtype: torch.dtype, values: int) -> None:
    with allowing_tf32():
        check_sum(Sum(GRAPHS[name], dtype, 3, 32, values, device=DEVICE))


@table("reduce", ["sum", "mean"])
@table("dtype", [BF16, F32])
@table("values", [0, 1])
def test_tiles_of_large_graphs_with_hubs(reduce: str, dtype: torch.dtype, values: int) -> None:
    edges = torch.cat([
        datasets.block_model(3000, 256, 0.5),
        datasets.rmat(3000, 60_000),
        torch.stack([torch.arange(3000), torch.full((3000,), 7)]),
    ], 1)  # fmt: skip
    graph = Graph.from_edge_index(edges.to(DEVICE), 3000, 3000)
    case = Sum((edges, 3000, 3000), dtype, 2, 128, values, reduce, DEVICE)
    with allowing_tf32():
        got = run(case, "tiles", graph=graph)
        assert graph.block_sparse("dst").splits.num_slots
        assert same_bits(named(run(case, "tiles", graph=graph)), named(got))
        close(got, run(case, "rows", graph=graph), dtype)


def test_a_nan_reaches_its_neighbours_alone() -> None:
    case = Sum(GRAPHS["block model"], BF16, 2, 64, device=DEVICE)

    def spoil(x: Tensor) -> None:
        x[3, 0, 2], x[20, 1, 7] = torch.nan, torch.inf

    close(run(case, "tiles", spoil), run(case, "rows", spoil), BF16)


@table("reduce", ["sum", "max"])
def test_measured(reduce: str) -> None:
    """Every path is tried, and what is remembered is taken again."""
    edges, num_src, num_dst = heavy_tailed()
    x = torch.randn(num_src, 64, device=DEVICE).bfloat16()
    autotune._known.clear()
    with TemporaryDirectory() as folder, config.override(cache_dir=Path(folder), autotune=True):
        for again in (False, True):
            graph = Graph.from_edge_index(edges.to(DEVICE), num_src, num_dst)
            with profile() as record, torch.no_grad():
                out = aggregate(graph, x, reduce)
            assert any(choice.endswith("(measured)") for choice in record.choices)
            tried = sum(record.launches.values())
            assert tried <= 2 if again else tried > 4
    autotune._known.clear()
    with config.override(aggregation_path="rows"):
        close([out], [aggregate(Graph.from_edge_index(edges.to(DEVICE), num_src, num_dst), x,
                                reduce)], BF16)  # fmt: skip

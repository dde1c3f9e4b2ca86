"""Argument structs have the layout that the launches pack; layouts of lanes fit a warp."""

from __future__ import annotations

import struct

import pytest
import torch

from gnn_backend.runtime.selection import WARP
from gnn_backend.runtime.sparse import aggregation_plans, edge_softmax, sddmm, spmm
from gnn_backend.runtime.sparse.layout import TYPES, columns_for, depth_for, heads_for
from gnn_backend.runtime.sparse.rows import chunk_of
from tests.emulator.support import launch

TABLE = ("data", "offsets", "stride")
TASKS = ("tasks", "num_tasks")
SIDES = tuple(f"{side}.{field}" for side in ("lhs", "rhs") for field in TABLE)
SPMM = (*TASKS, "indices", "edge_ids", *SIDES, "width", "dim", "mean", "nothing", "out",
        "arg_source", "arg_edge", "partial", "partial_source", "partial_edge")  # fmt: skip
MERGE = ("heavy_rows", "heavy_ptr", "divisor", "count", "width", "nothing", "partial",
         "partial_source", "partial_edge", "out", "arg_source", "arg_edge")  # fmt: skip
SDDMM = (*TASKS, "indices", "edge_ids", *SIDES, "width", "dim", "out")
SOFTMAX = (*TASKS, "edge_ids", "edge_rows", "num_edges",
           *(f"{s}.{field}" for s in ("value", "grad") for field in TABLE),
           "width", "weighted", "out", "row_stats", "slot_stats")  # fmt: skip
SOFTMAX_MERGE = ("heavy_rows", "heavy_ptr", "num_heavy", "width", "columns", "slot_stats",
                 "row_stats")  # fmt: skip
RESULTS = ("sum", "mean", "square", "var", "std", "most", "least", "product", "softmax", "center",
           "most_kept", "least_kept", "rest", "zeros", "lse", "spread")  # fmt: skip
MESSAGE = tuple(f"{side}.{field}" for side in ("x", "edge") for field in TABLE)
HEAT = ("temperature", "temperature_step")
AGGREGATE = (*TASKS, "indices", "edge_ids", *MESSAGE, "width", "dim", *HEAT, "partial",
             *(f"out.{name}" for name in RESULTS))  # fmt: skip
AGGREGATE_MERGE = ("heavy_rows", "heavy_ptr", "degrees", "count", "width", "edge_ids", "partial",
                   *(f"out.{name}" for name in RESULTS))  # fmt: skip
BACKWARD = (*TASKS, "indices", "edge_ids", *MESSAGE, "width", "dim",
            *(f"tables.{name}" for name in (*aggregation_plans.TABLES, "width", *HEAT)),
            "out", "partial")  # fmt: skip
STRUCTS = [
    ("aggregate.cuh", "AggregateArgs", AGGREGATE, aggregation_plans.AGGREGATE_ARGS),
    ("aggregate.cuh", "AggregateMergeArgs", AGGREGATE_MERGE,
     aggregation_plans.AGGREGATE_MERGE_ARGS),
    ("aggregate_backward.cuh", "AggregateBackwardArgs", BACKWARD,
     aggregation_plans.BACKWARD_ARGS),
    ("spmm.cuh", "SpmmArgs", SPMM, spmm.SPMM_ARGS),
    ("reduce_merge.cuh", "ReduceMergeArgs", MERGE, spmm.REDUCE_MERGE_ARGS),
    ("sddmm.cuh", "SddmmArgs", SDDMM, sddmm.SDDMM_ARGS),
    ("edge_softmax.cuh", "EdgeSoftmaxArgs", SOFTMAX, edge_softmax.EDGE_SOFTMAX_ARGS),
    ("edge_softmax.cuh", "EdgeSoftmaxMergeArgs", SOFTMAX_MERGE,
     edge_softmax.EDGE_SOFTMAX_MERGE_ARGS),
]  # fmt: skip
SOURCE = """
#include "{header}"
struct Out {{ long long* out; }};
GNNB_ENTRY(layout, Out, 1, {body})
"""


@pytest.mark.parametrize(("header", "name", "fields", "packed"), STRUCTS, ids=lambda v: str(v)[:20])
def test_structs_are_those_of_the_kernels(
    header: str, name: str, fields: tuple[str, ...], packed: struct.Struct, emulator: None
) -> None:
    kind = f"gnnb::{name}"
    places = [f"__builtin_offsetof({kind}, {field})" for field in fields] + [f"sizeof({kind})"]
    body = " ".join(f"args.out[{i}] = {place};" for i, place in enumerate(places))
    out = torch.zeros(len(places), dtype=torch.int64)
    launch(SOURCE.format(header=header, body=body), "layout", 1, out)
    assert out.tolist() == [8 * i for i in range(len(fields) + 1)]
    assert packed.size == 8 * len(fields)


@pytest.mark.parametrize("dtype", TYPES)
def test_columns_fit_a_warp_and_cover_the_width(dtype: str) -> None:
    for width in range(1, 300):
        for accesses, dim in ((("row", "none"), 1), (("row", "head"), 4), (("row", "table"), 1)):
            columns = columns_for(dtype, width, accesses, dim)
            sizes = (columns.lanes, columns.edges, columns.values)
            assert all(n & (n - 1) == 0 and n > 0 for n in sizes)
            assert columns.tasks * columns.lanes * columns.edges == WARP
            assert columns.full == (width % columns.tile == 0)
            assert columns.tile < 2 * width or columns.lanes == 1 or not columns.vector
            assert depth_for(columns, 2) >= 1


@pytest.mark.parametrize("dtype", TYPES)
def test_heads_fit_a_warp(dtype: str) -> None:
    for heads in range(1, 20):
        for dim in (1, 2, 7, 8, 16, 64, 100, 128, 512, 1000):
            layout = heads_for(dtype, heads, dim)
            assert layout.tasks * layout.lanes * layout.heads * layout.edges == WARP
            assert heads % layout.heads == 0


def test_narrow_rows_have_shorter_tasks() -> None:
    """As a graph of as many bytes would have them."""
    edges = 1 << 24
    assert chunk_of(edges, 512) == chunk_of(edges, 4096) == 1024
    assert chunk_of(edges, 8) == chunk_of(edges // 64, 512) == 64
    assert chunk_of(0, 8) == 64 and chunk_of(4500 * 256, 512) == 256
    assert chunk_of(4500 * 256 - 1, 512) == 128

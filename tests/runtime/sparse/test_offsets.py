"""Rows past 2^31 elements, in memory that is reserved but hardly touched.

Only rows with edges are given to the kernels as tasks, so that gigabytes of address space cost
megabytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gnn_backend import config
from gnn_backend.graph import CSR, Graph, Splits
from gnn_backend.ops.aggregation import aggregate
from gnn_backend.ops.edge_softmax import edge_softmax
from gnn_backend.ops.edgewise import gsddmm
from gnn_backend.ops.spmm import gspmm
from gnn_backend.runtime.sparse import rows
from tests.ops.operators import draw, messages, reduced, softmax_oracle, winners
from tests.runtime.test_device_offsets import DIM, FAR, RowsWithEdges

DTYPE = torch.float16
CHUNK = 4


@pytest.fixture(autouse=True)
def on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rows, "chunk_of", lambda *_: CHUNK)
    with config.override(cpu_target="emulator"):
        yield


def table(rows: int, used: Tensor, values: Tensor) -> Tensor:
    """A [rows, DIM] table that holds ``values`` in the rows ``used`` and nothing elsewhere."""
    try:
        out = torch.empty(rows, DIM, dtype=values.dtype)
    except RuntimeError as error:
        pytest.skip(f"cannot reserve {rows * DIM * 2 >> 30} GiB of address space: {error}")
    out[used] = values
    return out


def test_nodes() -> None:
    """Sources that are read and destinations that are written, whole and split."""
    sources = torch.tensor([3, FAR - 1, FAR, FAR + 60])
    destinations = torch.tensor([0, 5, FAR, FAR + 7, FAR + 63])
    generator = torch.Generator().manual_seed(0)
    near = torch.stack([torch.randint(0, n, (40,), generator=generator) for n in (4, 5)])
    edges = torch.stack([sources[near[0]], destinations[near[1]]])
    graph = RowsWithEdges.from_edge_index(edges, FAR + 64, FAR + 64)
    values, e = draw(4, (DIM,), DTYPE), draw(40, (1,), DTYPE)
    out, arg_u, arg_e = gspmm(graph, "mul", "max", table(FAR + 64, sources, values), e)
    message = messages(near, "mul", values, e)
    want = reduced(near, 5, "max", message)
    place = winners(near, 5, want, message, torch.arange(40))
    assert torch.equal(out[destinations].double(), want)
    assert arg_u is not None and torch.equal(arg_u[destinations].long(), edges[0][place])
    assert arg_e is not None and torch.equal(arg_e[destinations].long(), place)


def test_aggregated_nodes() -> None:
    """The same of several reductions in one pass."""
    sources = torch.tensor([3, FAR - 1, FAR, FAR + 60])
    destinations = torch.tensor([0, 5, FAR, FAR + 7, FAR + 63])
    generator = torch.Generator().manual_seed(0)
    near = torch.stack([torch.randint(0, n, (40,), generator=generator) for n in (4, 5)])
    edges = torch.stack([sources[near[0]], destinations[near[1]]])
    graph = RowsWithEdges.from_edge_index(edges, FAR + 64, FAR + 64)
    values = draw(4, (DIM,), DTYPE)
    x = table(FAR + 64, sources, values)
    with torch.no_grad():
        for reduce, out in zip(("max", "sum"), aggregate(graph, x, ("max", "sum")), strict=True):
            want = reduced(near, 5, reduce, values.double()[near[0]])
            assert torch.equal(out[destinations].double(), want)


class LastRow(Graph):
    """A graph of two destinations of which only the second is given to the kernels."""

    def splits(self, direction: str, chunk: int) -> Splits:
        whole = super().splits(direction, chunk)
        tasks = whole.tasks[whole.tasks[:, 0] == 1].clone()
        slots = tasks[:, 1] >= 0
        skipped = int(whole.heavy_ptr[1])
        tasks[:, 1] = torch.where(slots, tasks[:, 1] - skipped, -1)
        return dataclasses.replace(
            whole,
            tasks=tasks,
            num_slots=int(slots.sum()),
            heavy_rows=whole.heavy_rows[1:],
            heavy_ptr=whole.heavy_ptr[1:] - skipped,
        )


@pytest.mark.parametrize("op", [pytest.param("add", marks=pytest.mark.thorough), "dot"])
def test_edges(op: str) -> None:
    """Edge rows that are read and written."""
    degree, first = 9, FAR + 3
    count = first + degree
    near = torch.tensor([4, 0, 2, 1, 3, 3, 0, 2, 4])
    indices = torch.zeros(count, dtype=torch.int32)
    indices[first:] = near
    csr = CSR(torch.tensor([0, first, count], dtype=torch.int32), indices, None)
    graph = LastRow(5, 2, csr, {})
    last = torch.arange(first, count)
    u, e = draw(5, (DIM,), DTYPE, 1), draw(degree, (DIM,), DTYPE, 2)
    far = table(count, last, e)
    got = gsddmm(graph, op, u, far, "u", "e")[last].double()
    want = u.double()[near] + e if op == "add" else (u.double()[near] * e).sum(1, keepdim=True)
    assert torch.equal(got, want.to(DTYPE).double())
    if op == "add":
        out, _, _ = gspmm(graph, "copy_rhs", "sum", None, far)
        assert torch.equal(out[1].double(), e.double().sum(0).to(DTYPE).double())
        logits = softmax_oracle(torch.zeros(2, degree, dtype=torch.int64), 1, e.double(), 1)
        found = edge_softmax(graph, far)[last].double()
        torch.testing.assert_close(found, logits, rtol=1e-3, atol=1e-3)

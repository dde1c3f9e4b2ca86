"""Tables and edge lists past 2^31 elements, in memory that is reserved but hardly touched.

Only the rows that have edges are given to the kernels as tasks; all others, which the kernels
would fill with zeros, stay untouched, so that gigabytes of address space cost megabytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnn_backend import config
from gnn_backend.graph import CSR, Graph, Splits
from gnn_backend.graph.splits import count_splits, make_splits
from gnn_backend.runtime import selection
from tests.ops.support import NAMES, Problem, attention, check, gradients, problem, reference

DIM, CHUNK = 1024, 4
FAR = 2**31 // DIM  # from this row on, elements have offsets of 2^31 and more


@pytest.fixture(autouse=True)
def on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(selection, "chunk_for", lambda *_: CHUNK)
    with config.override(cpu_target="emulator"):
        yield


class RowsWithEdges(Graph):
    """A graph whose tasks leave out the rows without edges."""

    def splits(self, direction: str, chunk: int) -> Splits:
        whole = super().splits(direction, chunk)
        tasks = whole.tasks[whole.tasks[:, 3] >> 16 > 0]  # the count is in the upper 16 bits
        return dataclasses.replace(whole, tasks=tasks.contiguous())


def table(rows: int, used: Tensor, values: Tensor) -> Tensor:
    """A [rows, 1, DIM] table that holds ``values`` in the rows ``used`` and nothing elsewhere."""
    try:
        out = torch.empty(rows, 1, DIM, dtype=values.dtype)
    except RuntimeError as error:
        pytest.skip(f"cannot reserve {rows * DIM * 2 >> 30} GiB of address space: {error}")
    out[used] = values.detach()
    return out


def test_rows_past_two_to_the_31_elements() -> None:
    sources = torch.tensor([3, FAR - 1, FAR, FAR + 60])
    destinations = torch.tensor([0, 5, FAR, FAR + 7, FAR + 63])
    generator = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(0, n, (40,), generator=generator) for n in (4, 5))
    near = problem(1, DIM, torch.float16, edges=(torch.stack([src, dst]), 4, 5))

    rows = FAR + 64
    edges = torch.stack([sources[src], destinations[dst]])
    graph = RowsWithEdges.from_edge_index(edges, rows, rows)
    far = Problem(
        graph,
        {
            "x_src": table(rows, sources, near.operands["x_src"]).requires_grad_(),
            "x_dst": table(rows, destinations, near.operands["x_dst"]).requires_grad_(),
            "att": near.operands["att"],
        },
        table(rows, destinations, near.cotangent),
    )
    assert (
        graph.splits("dst", CHUNK).heavy_rows[-1]
        >= FAR
        <= graph.splits("src", CHUNK).heavy_rows[-1]
    )
    out = attention(far)
    got = gradients(out, far)
    check(
        {"out": out[destinations], "x_src": got["x_src"][sources],
         "x_dst": got["x_dst"][destinations], "att": got["att"]},
        reference(near),
        torch.float16,
    )  # fmt: skip


class LastRow(Graph):
    """A graph of two destinations of which only the second is given to the kernels."""

    def splits(self, direction: str, chunk: int) -> Splits:
        indptr = self.by_dst.indptr[1:]
        sizes = count_splits(indptr.diff(), (chunk,))[0].tolist()
        splits = make_splits(indptr, chunk, *sizes)
        splits.tasks[:, 0] += 1
        return dataclasses.replace(splits, heavy_rows=splits.heavy_rows + 1)


def test_edges_past_two_to_the_31(tmp_path: Path) -> None:
    first, degree = 2**31, 9
    file = tmp_path / "indices"
    with file.open("wb") as handle:
        handle.truncate(4 * (first + degree))  # a hole but for its end
    indices = torch.from_file(str(file), shared=True, size=first + degree, dtype=torch.int32)
    neighbours = torch.tensor([4, 0, 2, 1, 3, 3, 0, 2, 4], dtype=torch.int32)
    indices[first:] = neighbours
    indptr = torch.tensor([0, first, first + degree])
    near = problem(1, DIM, torch.float16, edges=(_to_row_one(neighbours), 5, 2))
    for name in ("x_src", "att"):  # their gradients need the edges by source
        near.operands[name].requires_grad_(False)
    far = dataclasses.replace(near, graph=LastRow(5, 2, CSR(indptr, indices, None), {}))
    out = attention(far)
    (grad,) = torch.autograd.grad(out, far.operands["x_dst"], far.cotangent)
    for name in NAMES:
        near.operands[name].requires_grad_()
    want = reference(near)
    got = {"out": out[1:], "x_dst": grad[1:]}
    check(got, {n: want[n][1:] for n in got}, torch.float16)


def _to_row_one(neighbours: Tensor) -> Tensor:
    return torch.stack([neighbours.long(), torch.ones(neighbours.numel(), dtype=torch.int64)])

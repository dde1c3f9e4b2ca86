"""Products, sums and masks of adjacency matrices, against dense ones."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from gnn_backend.ops.csr import SparseMatrix, csrmask, csrmm, csrsum


def problem(rows: int, columns: int, edges: int, seed: int) -> tuple[Graph, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ends = [torch.randint(0, n, (edges,), generator=generator) for n in (rows, columns)]
    graph = Graph.from_edge_index(torch.stack(ends), rows, columns)
    return graph, torch.randn(edges, generator=generator)


def dense(graph: Graph, weights: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(graph.num_src, graph.num_dst)
    ids = graph.by_dst.edge_ids
    rows = torch.repeat_interleave(torch.arange(graph.num_dst), graph.by_dst.indptr.diff())
    where = (graph.by_dst.indices.long(), rows)
    return out.index_put(where, weights if ids is None else weights[ids.long()], accumulate=True)


def as_dense(matrix: SparseMatrix) -> torch.Tensor:
    out = torch.zeros(matrix.num_rows, matrix.num_cols)
    rows = torch.repeat_interleave(torch.arange(matrix.num_rows), matrix.indptr.diff())
    places = rows * matrix.num_cols + matrix.indices
    assert (places.diff() > 0).all()  # ascending, none twice
    out.view(-1)[places] = matrix.weights
    return out


def test_product() -> None:
    (a, wa), (b, wb) = problem(7, 5, 20, 0), problem(5, 6, 14, 1)
    got = csrmm(a, wa, b, wb)
    torch.testing.assert_close(as_dense(got), dense(a, wa) @ dense(b, wb))
    nonzero = (dense(a, torch.ones(20)) @ dense(b, torch.ones(14))) > 0
    assert got.weights.numel() == nonzero.sum()


def test_sum() -> None:
    parts = [problem(7, 5, n, n) for n in (20, 3, 0)]
    got = csrsum([g for g, _ in parts], [w for _, w in parts])
    torch.testing.assert_close(as_dense(got), sum(dense(g, w) for g, w in parts))


def test_mask() -> None:
    graph, weights = problem(7, 5, 12, 0)
    mask, _ = problem(7, 5, 30, 1)
    got = csrmask(graph, weights, mask)
    ids = {}
    ends = graph.by_dst
    rows = torch.repeat_interleave(torch.arange(5), ends.indptr.diff())
    for source, row, edge in zip(ends.indices.tolist(), rows.tolist(), ends.edge_ids.tolist()):  # noqa: B905
        ids.setdefault((source, row), edge)  # the first of parallel edges
    own = mask.by_dst
    rows = torch.repeat_interleave(torch.arange(5), own.indptr.diff())
    for source, row, edge in zip(own.indices.tolist(), rows.tolist(), own.edge_ids.tolist()):  # noqa: B905
        found = ids.get((source, row))
        assert got[edge] == (0 if found is None else weights[found])


def test_empty() -> None:
    graph, weights = problem(3, 4, 0, 0)
    other, values = problem(4, 2, 5, 0)
    assert not as_dense(csrmm(graph, weights, other, values)).any()
    mask, _ = problem(3, 4, 6, 1)
    assert not csrmask(graph, weights, mask).any()


def test_bad_arguments() -> None:
    (a, wa), (b, wb) = problem(7, 5, 20, 0), problem(6, 6, 14, 1)
    for call, message in (
        (lambda: csrmm(a, wa, b, wb), "right: does not fit"),
        (lambda: csrsum([a, b], [wa, wb]), "different node counts"),
        (lambda: csrsum([], []), "wrong number"),
        (lambda: csrmask(a, wa, b), "different node counts"),
        (lambda: csrmask(a, wa[1:], a), "weights: wrong shape"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            call()

"""Unions of relations: edges, pairs, factors and rows against a loop over relations."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.errors import InvalidArgument
from gnn_backend.ir.domains import Domain
from gnn_backend.layers.hetero.aggregating import edge_factors
from gnn_backend.layers.hetero.union import Piece, Union

ENDS = (0, 0, 1)
EDGES = [([0, 0, 2], [1, 1, 0]), ([], []), ([1, 0], [2, 2])]
TABLES = [0, 1, 1]


def union() -> Union:
    pieces = [
        Piece(r, TABLES[r], torch.tensor(s, dtype=torch.int64), torch.tensor(d, dtype=torch.int64))
        for r, (s, d) in enumerate(EDGES)
    ]
    return Union(pieces, ENDS, src_sizes=(3, 2), dst_sizes=(2, 3))


def test_pairs_are_those_with_an_edge() -> None:
    found = union()
    assert found.bounds(Domain.SRC_PAIR).ptr.tolist() == [0, 2, 2, 4]
    assert found.bounds(Domain.DST_PAIR).ptr.tolist() == [0, 2, 2, 3]


def test_mean_counts_within_a_relation() -> None:
    found = union()
    factors = edge_factors(found, found.rows(dense=True), "mean", torch.float64)
    assert factors is not None and factors.tolist() == [0.5, 0.5, 1.0, 0.5, 0.5]
    shared = edge_factors(found, found.rows(False, (2, 1)), "mean", torch.float64)
    assert shared is not None and shared.tolist() == [0.25, 0.25, 0.5, 0.5, 0.5]


def test_rows_are_relations_or_tables_side_by_side() -> None:
    found = union()
    dense, summed = found.rows(dense=True), found.rows(dense=False)
    assert (dense.count, dense.sizes, dense.begins) == (7, [4, 3], [0, 2, 4])
    assert (summed.count, summed.sizes) == (5, [2, 3])
    assert [list(part.shape) for part in dense.split(torch.zeros(7, 6))] == [[2, 2, 6], [1, 3, 6]]
    assert dense.target(Domain.EDGE).tolist() == [1, 1, 0, 6, 6]
    assert summed.target(Domain.EDGE).tolist() == [1, 1, 0, 4, 4]


def test_parameters_are_mixed_by_the_table_of_the_relation() -> None:
    rows = union().rows(False, (2, 1))
    mixing = rows.mixing(torch.float32)
    assert mixing is not None and mixing.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    assert rows.own_share(torch.float32).flatten().tolist() == [1.0] * 5


@pytest.mark.parametrize("edge", [(3, 0), (0, 2), (-1, 0)])
def test_an_edge_must_stay_in_its_tables(edge: tuple[int, int]) -> None:
    ends = [torch.tensor([end]) for end in edge]
    with pytest.raises(InvalidArgument, match="out of range"):
        Union([Piece(0, 0, *ends)], (0,), (3, 2), (2, 3))

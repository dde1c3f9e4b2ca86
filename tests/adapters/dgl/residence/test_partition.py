"""Which part owns each row of an array on the device; DGL has nothing of it on the CPU."""

from __future__ import annotations

from typing import Any

import dgl
import pytest
import torch
from dgl.distributed import graph_partition_book
from dgl.partition import NDArrayPartition

import gnn_backend
from tests.adapters.dgl.residence.places import IDTYPES, Place

BOUNDS = [0, 4, 4, 11]


def owned(mode: str, place: Place, idtype: torch.dtype) -> tuple[Any, list[list[int]]]:
    """A partition of 11 rows into 3 parts, and the rows of each."""
    if mode == "remainder":
        return NDArrayPartition(11, 3), [list(range(part, 11, 3)) for part in range(3)]
    bounds = torch.tensor(BOUNDS, dtype=idtype, device=place.device)
    made = NDArrayPartition(11, 3, mode="range", part_ranges=bounds)
    return made, [list(range(*BOUNDS[part : part + 2])) for part in range(3)]


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("mode", ["remainder", "range"])
def test_rows_and_their_parts(place: Place, mode: str, idtype: torch.dtype) -> None:
    with place.standing_in():
        partition, rows = owned(mode, place, idtype)
        given = torch.tensor([6, 0, 10, 2, 7, 6], dtype=idtype, device=place.device)
        order, counts = partition.generate_permutation(given)
        assert order.dtype == idtype and counts.dtype == torch.int64
        assert given[order.long()].tolist() == [i for part in rows for i in given if i in part]
        assert counts.tolist() == [sum(int(i) in part for i in given) for part in rows]
        local = partition.map_to_local(given)
        owners = [next(p for p, part in enumerate(rows) if int(i) in part) for i in given]
        assert local.dtype == idtype and local.device == place.device
        assert [rows[p][i] for p, i in zip(owners, local.tolist(), strict=True)] == given.tolist()
        for part in range(3):
            assert partition.local_size(part) == len(rows[part])
            ctx = place.device
            assert partition.get_local_indices(part, ctx).tolist() == rows[part]
        none, counts = partition.generate_permutation(given[:0])
        assert none.numel() == 0 and counts.tolist() == [0, 0, 0]


def test_of_a_partition_book(place: Place) -> None:
    nodes = {"_N": torch.tensor([[0, 3], [4, 5], [6, 10]])}
    edges = {("_N", "_E", "_N"): torch.tensor([[0, 9], [10, 15], [16, 25]])}
    with place.standing_in():
        book = graph_partition_book.RangePartitionBook(0, 3, nodes, edges, {"_N": 0}, {
            ("_N", "_E", "_N"): 0})  # fmt: skip
        made = graph_partition_book.get_node_partition_from_book(book, place.device)
        assert (made.num_parts(), made.array_size()) == (3, 11)
        assert [made.local_size(part) for part in range(3)] == [4, 2, 5]
        rows = torch.tensor([0, 2, 6, 7, 10], device=place.device)
        assert made.map_to_local(rows).tolist() == [0, 2, 0, 1, 4]


def test_ranges_that_do_not_fit(place: Place) -> None:
    with place.standing_in(), pytest.raises(AssertionError, match="array_size"):
        bounds = torch.tensor([0, 4, 9], device=place.device)
        NDArrayPartition(11, 2, mode="range", part_ranges=bounds)


def test_rows_on_the_cpu_are_left_to_dgl() -> None:
    with gnn_backend.enabled(hosts="dgl"), pytest.raises(dgl.DGLError):
        NDArrayPartition(11, 3).map_to_local(torch.arange(3))

"""Wrong input to Graph is refused, and the message names the argument."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnn_backend.errors import InvalidArgument
from gnn_backend.graph import Graph
from tests.graph.support import edge_index

GOOD = edge_index([(0, 1), (1, 0)])
PTR, IDX = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("edges", "counts", "message"),
    [
        (torch.zeros(3, 2, dtype=torch.int64), (), r"edge_index: wrong shape; got \(3, 2\)"),
        (torch.zeros(4, dtype=torch.int64), (), r"edge_index: wrong shape; got \(4,\)"),
        (torch.zeros(2, 2, 2, dtype=torch.int64), (), r"edge_index: wrong shape"),
        (None, (), "edge_index: not a tensor; got NoneType"),
        ([[0], [1]], (), "edge_index: not a tensor; got list"),
        (GOOD, ("x", 3), "num_src: not a count; got 'x'"),
        (GOOD, (3, 2.5), "num_dst: not a count; got 2.5"),
        (GOOD.float(), (), "edge_index: wrong dtype; got torch.float32"),
        (GOOD.to(torch.int16), (), "edge_index: wrong dtype; got torch.int16"),
        (GOOD > 0, (), "edge_index: wrong dtype; got torch.bool"),
        (GOOD, (1, 2), "edge_index: source of edge 1 out of range; got 1, expected 0 to 0"),
        (GOOD, (2, 1), "edge_index: destination of edge 0 out of range; got 1, expected 0 to 0"),
        (GOOD, (0, 2), "edge_index: source of edge 0 out of range; got 0, expected no edge"),
        (GOOD, (2, 0), "edge_index: destination of edge 0 out of range"),
        (edge_index([(0, 0), (-1, 0)]), (2, 2), "source of edge 1 out of range; got -1"),
        (edge_index([(0, 0), (0, -3)]), (2, 2), "destination of edge 1 out of range; got -3"),
        (edge_index([(-1, 0)]), (), "source of edge 0 out of range; got -1"),
        (edge_index([(0, -1)]), (), "destination of edge 0 out of range; got -1"),
        (edge_index([(2**32, 0)]), (2, 2), "source of edge 0 out of range; got 4294967296"),
        (edge_index([(0, 2**32)]), (2, 2), "destination of edge 0 out of range; got 4294967296"),
        (edge_index([(2**40, 0)]), (), "num_src: out of range; got 1099511627777"),
        (edge_index([(0, 2**40)]), (), "num_dst: out of range; got 1099511627777"),
        (GOOD, (-1, 2), "num_src: out of range; got -1"),
        (GOOD, (2, 2**31), "num_dst: out of range; got 2147483648"),
    ],
)
def test_from_edge_index(edges: Tensor, counts: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Graph.from_edge_index(edges, *counts)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"indptr": PTR.float()}, "indptr: wrong dtype; got torch.float32"),
        ({"indices": IDX.double()}, "indices: wrong dtype; got torch.float64"),
        ({"edge_ids": IDX.bool()}, "edge_ids: wrong dtype; got torch.bool"),
        ({"indptr": PTR[None]}, r"indptr: wrong shape; got \(1, 3\)"),
        ({"indices": IDX[:, None]}, r"indices: wrong shape; got \(3, 1\)"),
        ({"indptr": PTR[:0]}, "indptr: empty"),
        ({"indptr": torch.tensor([1, 1, 3])}, "indptr: not the bounds.*first 1"),
        ({"indptr": torch.tensor([0, 1, 2])}, "indptr: not the bounds.*last 2"),
        ({"indptr": torch.tensor([0, 1, 4])}, "indptr: not the bounds.*last 4"),
        ({"indptr": torch.tensor([0, 4, 3])}, "indptr: not the bounds.*smallest step -1"),
        ({"indptr": torch.tensor([0])}, "indptr: not the bounds.*last 0"),
        # These wrap around to right bounds when cut down to 32 bits.
        ({"indptr": torch.tensor([0, 1, 3 + 2**32])}, "indptr: not the bounds"),
        ({"indptr": torch.tensor([0, 1 + 2**32, 3])}, "indptr: not the bounds"),
        ({"num_src": 2}, "indices: source of edge 2 out of range; got 2, expected 0 to 1"),
        ({"indices": torch.tensor([0, -1, 2])}, "indices: source of edge 1 .* got -1"),
        ({"indices": IDX + 2**32}, "indices: source of edge 0 .* got 4294967296"),
        ({"indices": IDX + 2**32, "num_src": None}, "num_src: out of range"),
        ({"num_src": -2}, "num_src: out of range; got -2"),
        ({"edge_ids": torch.tensor([0, 1])}, "edge_ids: wrong length; got 2, expected 3"),
        ({"indptr": PTR.to("meta")}, "indptr: on another device; got meta, expected cpu"),
        ({"edge_ids": IDX.to("meta")}, "edge_ids: on another device; got meta"),
    ],
)
def test_from_csr(changed: dict[str, object], message: str) -> None:
    arguments = {"indptr": PTR, "indices": IDX, "num_src": 3, "edge_ids": None} | changed
    with pytest.raises(InvalidArgument, match=message):
        Graph.from_csr(**arguments)


def test_csr_input_as_given_is_right() -> None:
    """What the cases above change is accepted unchanged."""
    assert Graph.from_csr(PTR, IDX, 3, torch.tensor([2, 0, 1])).num_edges == 3


@pytest.mark.parametrize("chunk", [0, -1, 32768])
def test_chunk_out_of_range(chunk: int) -> None:
    with pytest.raises(InvalidArgument, match=f"chunk: out of range; got {chunk}"):
        Graph.from_edge_index(GOOD).splits("dst", chunk)

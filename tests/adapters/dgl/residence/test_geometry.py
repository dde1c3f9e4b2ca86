"""Nearest neighbours among points on the device."""

from __future__ import annotations

from typing import Any

import dgl
import pytest
import torch

import gnn_backend
from gnn_backend.adapters.dgl.residence import geometry
from tests.adapters.dgl.residence.places import Place


def points(dtype: torch.dtype) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(30, 4, dtype=dtype), torch.randn(25, 4, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dist", ["euclidean", "cosine"])
def test_other_points_in_segments(place: Place, dist: str, dtype: torch.dtype) -> None:
    def run(x: Any, y: Any) -> Any:
        found = dgl.functional.knn(
            3, x, [12, 3, 15], y, [7, 0, 18], algorithm="bruteforce", dist=dist
        )
        return found[0], found[1].view(-1, 3).sort(1).values

    place.check(run, *points(dtype))


@pytest.mark.parametrize("algorithm", ["bruteforce", "bruteforce-sharemem", "kd-tree"])
@pytest.mark.parametrize("itself", [False, True])
def test_graphs_of_neighbours(place: Place, algorithm: str, itself: bool) -> None:
    """The algorithm that stock has on CUDA alone gives what its sister gives."""
    x, _ = points(torch.float32)
    with place.standing_in(), gnn_backend.profile() as profile:
        there = x.to(place.device)
        made = [
            dgl.knn_graph(there, 4, algorithm, exclude_self=itself),
            dgl.segmented_knn_graph(there, 4, [10, 20], algorithm, exclude_self=itself),
        ]
    wanted = [
        dgl.knn_graph(x, 4, "bruteforce", exclude_self=itself),
        dgl.segmented_knn_graph(x, 4, [10, 20], "bruteforce", exclude_self=itself),
    ]
    for found, stock in zip(made, wanted, strict=True):
        assert found.device == place.device
        ends = [torch.stack(g.edges(order="srcdst")).cpu() for g in (found, stock)]
        assert torch.equal(*ends)
    assert profile.detours.get("DGLKNN", 0) == (2 if algorithm == "kd-tree" else 0)


def test_a_few_distances_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "_DISTANCES", 70)  # two queries of 30 points

    def run(x: Any, y: Any) -> Any:
        return dgl.functional.knn(2, x, [30], y, [25])[1].view(-1, 2).sort(1).values

    place.check(run, *points(torch.float64))


def test_approximate_neighbours(place: Place) -> None:
    x, _ = points(torch.float32)
    with place.standing_in():
        g = dgl.knn_graph(x.to(place.device), 3, "nn-descent")
    assert g.device == place.device and g.in_degrees().tolist() == [3] * 30

"""Degree statistics."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.graph import DegreeStats, Graph
from gnn_backend.graph.stats import degree_stats
from tests.graph.support import edge_index


def test_both_directions() -> None:
    graph = Graph.from_edge_index(edge_index([(0, 0), (0, 1), (0, 1), (1, 1)]), 2, 4)
    by_dst, by_src = graph.stats("dst"), graph.stats("src")
    assert (by_dst.maximum, by_dst.mean, by_dst.median) == (3, 1.0, 0.0)
    assert (by_src.maximum, by_src.mean, by_src.skewness) == (3, 2.0, 0.0)
    # Degrees 1, 3, 0, 0: deviations 0, 2, -1, -1; variance 6/4, third moment 6/4.
    assert by_dst.skewness == pytest.approx(1.5 / 1.5**1.5)


def test_quantiles_of_a_long_sequence() -> None:
    stats = degree_stats(torch.arange(1001).flip(0))
    assert (stats.maximum, stats.median, stats.p99) == (1000, 500.0, 990.0)
    assert stats.skewness == pytest.approx(0.0, abs=1e-12)


def test_a_regular_graph_has_no_skew() -> None:
    assert degree_stats(torch.full((7,), 4)) == DegreeStats(4, 4.0, 4.0, 4.0, 0.0)


def test_no_rows() -> None:
    assert degree_stats(torch.zeros(0, dtype=torch.int32)) == DegreeStats(0, 0.0, 0.0, 0.0, 0.0)

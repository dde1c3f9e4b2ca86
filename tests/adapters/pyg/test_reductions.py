"""Factors of degrees are kept with a graph, for as long as the means that they were made with."""

from __future__ import annotations

import pytest
import torch

from gnn_backend.graph import Graph
from tests.adapters.pyg.helpers import edges

pytest.importorskip("torch_geometric")
from torch_geometric.nn.aggr import DegreeScalerAggregation

from gnn_backend.adapters.pyg.reductions import factors_of, kept_factors

SCALERS = ["identity", "amplification", "linear"]


def module(train: bool = False) -> DegreeScalerAggregation:
    degrees = torch.tensor([1, 3, 4, 2])
    return DegreeScalerAggregation(["mean"], SCALERS, degrees, train_norm=train)


def test_kept_until_a_mean_changes() -> None:
    graph, scaler = Graph.from_edge_index(edges(9, 9), 9, 9), module()
    degree = graph.by_dst.indptr.diff().float()
    first = kept_factors(scaler, graph, torch.float32)
    assert kept_factors(scaler, graph, torch.float32) is first
    assert torch.equal(first, factors_of(scaler, degree))
    scaler.avg_deg_log.mul_(2)
    second = kept_factors(scaler, graph, torch.float32)
    assert torch.equal(second, factors_of(scaler, degree)) and not torch.equal(second, first)
    other = module()
    other.avg_deg_lin = other.avg_deg_lin * 3
    third = kept_factors(other, graph, torch.float32)
    assert torch.equal(third, factors_of(other, degree)) and not torch.equal(third, second)


def test_learned_means_get_gradients() -> None:
    graph, scaler = Graph.from_edge_index(edges(9, 9), 9, 9), module(train=True)
    found = kept_factors(scaler, graph, torch.float32)
    (grad,) = torch.autograd.grad(found.sum(), [scaler.avg_deg_log])
    assert grad.abs().sum() > 0

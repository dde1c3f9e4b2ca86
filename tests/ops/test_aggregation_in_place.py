"""Results of aggregation may be changed in place wherever those of stock may."""

from __future__ import annotations

import pytest
import torch

from gnn_backend import config
from gnn_backend.graph import Graph
from gnn_backend.ops import aggregate


@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize("path", ["rows", "tiles"])
@pytest.mark.parametrize(("reduce", "ties"), [("sum", "even"), ("mean", "even"), ("max", "first")])
@pytest.mark.parametrize("shape", [(16,), (2, 16)])
@pytest.mark.parametrize("target", ["numba", "emulator"])
def test_gradients(target: str, path: str, reduce: str, ties: str, shape: tuple[int, ...]) -> None:
    """relu_ and += behind an aggregation are common."""
    graph = Graph.from_edge_index(torch.arange(40).view(2, 20) * 7 % 9, 9, 9)
    grads = []
    with config.override(cpu_target=target, aggregation_path=path):
        for in_place in (False, True):
            torch.manual_seed(0)
            x = torch.randn(9, *shape, dtype=torch.bfloat16, requires_grad=True)
            out = aggregate(graph, x, reduce, ties=ties)
            out = out.relu_() if in_place else out.relu()
            grads.append(torch.autograd.grad(out.sum(), x)[0])
    assert torch.equal(*grads) and grads[0].abs().sum() > 0

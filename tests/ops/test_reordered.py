"""Operators on reordered graphs: rows as before bit for bit, edges in the caller's order."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from gnn_backend import config, datasets
from gnn_backend.graph import Graph
from gnn_backend.graph.reorder import METHODS
from gnn_backend.ops import aggregate
from gnn_backend.ops.attention import gatv2_attention
from gnn_backend.profile import profile
from tests.ops.support import problem
from tests.runtime import block_cases as tiled

HEADS = 2
DIMS = {"numba": 8, "emulator": 64}  # those that are compiled soonest


def attention(graph: Graph) -> dict[str, Tensor]:
    """Output, weights after dropout and all gradients."""
    p = problem(HEADS, DIMS[config.get_config().cpu_target])
    operands = {name: value.clone().requires_grad_() for name, value in p.operands.items()}
    torch.manual_seed(5)
    out, weights = gatv2_attention(graph, **operands, dropout_p=0.4, return_attention=True)
    grads = torch.autograd.grad(out, list(operands.values()), p.cotangent)
    return {"out": out, "weights": weights, **dict(zip(operands, grads, strict=True))}


def reductions(graph: Graph) -> dict[str, Tensor]:
    p = problem(1, DIMS[config.get_config().cpu_target])
    x = p.operands["x_src"].squeeze(1).round(decimals=1).clone().requires_grad_()  # ties
    found = aggregate(graph, x, ("sum", "max"), ties="first")
    (grad,) = torch.autograd.grad(sum((t * t.detach().cos()).sum() for t in found), x)  # type: ignore[arg-type]
    return {"sum": found[0], "max": found[1], "x": grad}


@pytest.mark.slow
@pytest.mark.parametrize("operator", [attention, reductions])
@pytest.mark.sampled(3)
def test_results_do_not_change(operator: object, target: str, splitting: None) -> None:
    graph, methods = problem().graph, list(METHODS)
    if target == "numba":  # kernels of rows laid out by number are plain ones, compiled once
        graph = graph.reorder(methods.pop(0))
    plain = operator(graph)  # type: ignore[operator]
    for method in methods:
        ordered = problem().graph.reorder(method)
        found = operator(ordered)  # type: ignore[operator]
        for name, value in found.items():
            # Blocks of the CPU cut other rows in two, whose parts are added up.
            if name == "att" or target == "numba":
                torch.testing.assert_close(value, plain[name], rtol=1e-5, atol=1e-5)
            else:
                assert torch.equal(value, plain[name]), (method, name)
        if operator is attention:  # the same edges are dropped
            assert torch.equal(found["weights"] == 0, plain["weights"] == 0)
            assert 0.3 < float((found["weights"] == 0).float().mean()) < 0.5


@pytest.mark.usefixtures("emulator")
def test_configured() -> None:
    p = problem(HEADS, DIMS["emulator"])
    x = p.operands["x_src"].flatten(1)
    expected = aggregate(p.graph, x, "max")
    with config.override(reorder="community"), profile() as record:
        assert torch.equal(aggregate(p.graph, x, "max"), expected)
    assert any(text.startswith("rows in community order") for text in record.choices)
    ordered = p.graph.reorder("community")
    assert any(key[0] == "rows" for key in ordered.plans)
    by_hand = dataclasses.replace(p, graph=p.graph.reorder("degree"))
    with config.override(reorder="community"), profile() as record:
        aggregate(by_hand.graph, x, "max")
    assert not any(text.startswith("rows in") for text in record.choices)


@pytest.mark.usefixtures("emulator")
def test_tiles_hold_the_rows_in_order() -> None:
    """Tiles fill up, and results and gradients are those of the rows by number but for rounding."""
    edges = datasets.block_model(96, 16, 0.5)
    data = datasets.shuffled(datasets.GraphData("blocks", edges, 96))
    bias = torch.randn(data.num_edges, 2, dtype=torch.bfloat16)
    p = tiled.problem((data.edge_index, 96, 96), 2, 64, torch.bfloat16)
    for given in (p, dataclasses.replace(p, edge_bias=bias)):
        expected = tiled.run(given)
        ordered = given.graph.reorder("community")
        found = tiled.run(dataclasses.replace(given, graph=ordered))
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=0.05, atol=0.02)
    filled = ordered.block_sparse("dst").stats.edges_per_tile
    assert filled > 3 * p.graph.block_sparse("dst").stats.edges_per_tile
    assert ordered.block_sparse("src").num_tiles < 12

"""GAT, GATv2 and dot-product attention with edge operands, dropout and returned weights."""

from __future__ import annotations

import itertools

import pytest
import torch

from gnn_backend.errors import InvalidArgument, Unsupported
from gnn_backend.ops.attention import dot_attention, gat_attention, gatv2_attention
from gnn_backend.ops.functors import FUNCTORS
from gnn_backend.runtime.random import Dropout, draw_dropout
from tests.ops.family import CASES, call, formula
from tests.ops.support import edges_with_hubs

FEW = (torch.tensor([[0, 1, 2, 0, 3, 1, 1], [0, 0, 0, 2, 2, 1, 1]]), 4, 4)


def assert_close(got, want, limit: float = 2e-5) -> None:
    assert list(got) == list(want)
    largest = max(w.abs().max() for n, w in want.items() if not n.startswith("out"))
    for name, expected in want.items():
        assert got[name].shape == expected.shape, name
        scale = expected.abs().max()
        scale = scale if name.startswith("out") else max(scale, 0.01 * largest)
        error = (got[name].double() - expected.double()).abs().max() / scale
        assert error <= limit, f"{name}: {error:.2e}"


@pytest.mark.parametrize("case", CASES)
def test_twin_is_the_formula(case: str) -> None:
    edges, *_ = edges_with_hubs()
    c = call(case, weights=True, dtype=torch.float64)
    wanted = [w for w in formula(c, edges) if w is not None]
    for got, want in zip(c.twin(), wanted, strict=True):
        torch.testing.assert_close(got.detach(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_equals_the_twin(case: str, twin_engine: None) -> None:
    for weights in (False, True):
        c = call(case, weights=weights)
        wide = c.to(torch.float64)
        assert_close(c.differentiated(c.run()), wide.differentiated(wide.twin()))


@pytest.mark.parametrize("case", CASES)
def test_dropout_equals_the_twin(case: str, twin_engine: None) -> None:
    c = call(case, weights=True)
    torch.manual_seed(3)
    got = c.differentiated(c.run(dropout_p=0.4))
    torch.manual_seed(3)
    dropout = draw_dropout(0.4, torch.device("cpu"))
    wide = c.to(torch.float64)
    assert_close(got, wide.differentiated(wide.twin(dropout)))
    dropped = got["out2" if c.aggregate else "out1"] == 0
    assert 0.3 < dropped.float().mean() < 0.5


@pytest.mark.parametrize("case", ["gatv2 edge", "gat features by head", "dot all"])
def test_second_derivatives(case: str, twin_engine: None) -> None:
    c = call(case, 1, 2, 2, edges=FEW, dtype=torch.float64, weights=True)
    names = list(c.operands)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        c.operands = dict(zip(names, tensors, strict=True))
        return c.run(dropout_p=0.2)

    leaves = tuple(c.operands.values())
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves)


def test_an_unused_result_has_no_gradient(twin_engine: None) -> None:
    """Each result alone, and the others' part of every gradient is 0."""
    c = call("dot all", weights=True).to(torch.float64)
    results, twins = c.run(), c.twin()
    leaves = list(c.operands.values())
    for result, want in zip(results, twins, strict=True):
        got = torch.autograd.grad(result.sum() * 2, leaves, retain_graph=True)
        expected = torch.autograd.grad(
            want.sum() * 2, leaves, retain_graph=True, materialize_grads=True
        )
        for g, w in zip(got, expected, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-9)


def test_scale_is_that_of_the_width_by_default(twin_engine: None) -> None:
    c = call("dot", dim=7)
    got = dot_attention(c.graph, **c.operands)
    torch.testing.assert_close(got, dot_attention(c.graph, **c.operands, scale=7**-0.5))


def test_results_come_in_order(twin_engine: None) -> None:
    for aggregate, weights in itertools.product((False, True), repeat=2):
        c = call("dot all" if aggregate else "dot", weights=weights)
        found = dot_attention(
            c.graph, **c.operands, edge_aggregate=aggregate, return_attention=weights
        )
        if not aggregate and not weights:
            assert isinstance(found, torch.Tensor)
            continue
        shapes = [tuple(part.shape[1:]) for part in found]
        assert shapes == [(2, 5), *[(2, 3)] * aggregate, *[(2,)] * weights]


def test_a_seed_decides_the_mask(twin_engine: None) -> None:
    c = call("gat", heads=6, weights=True)

    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return c.run(dropout_p=0.5)[-1]

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
    torch.manual_seed(1)
    first, second = c.run(dropout_p=0.5)[-1], c.run(dropout_p=0.5)[-1]
    assert not torch.equal(first, second), "a call does not advance the generator"
    before = torch.get_rng_state()
    c.run()
    assert torch.equal(torch.get_rng_state(), before), "no dropout draws"


def test_all_weights_dropped(twin_engine: None) -> None:
    c = call("dot all", weights=True)
    got = c.differentiated(c.run(dropout_p=1.0))
    assert all((tensor == 0).all() for tensor in got.values())


def test_masks_are_independent_and_even() -> None:
    """Of 40,000 edges and 5 heads each head keeps its share, and no two agree more than chance."""
    from gnn_backend.runtime.random import keep_scale

    kept = keep_scale(torch.arange(40_000), 5, Dropout(0.3, 77, 1)) > 0
    assert (kept.float().mean(0) - 0.7).abs().max() < 0.01
    agree = [(kept[:, a] == kept[:, b]).float().mean() for a in range(5) for b in range(a)]
    assert all(abs(float(x) - 0.58) < 0.015 for x in agree)
    other = keep_scale(torch.arange(40_000), 5, Dropout(0.3, 77, 5)) > 0
    assert abs(float((kept == other).float().mean()) - 0.58) < 0.01


@pytest.mark.parametrize(
    ("case", "operand", "shape", "message"),
    [
        ("gatv2 edge", "edge", (220, 2, 4), r"edge: wrong shape; got \(220, 2, 4\)"),
        ("gat", "el", (37, 2, 1), r"el: wrong shape; got \(37, 2, 1\), expected \(37, 2\)"),
        ("gat logit", "edge_logit", (220, 1), "edge_logit: wrong shape"),
        ("gat features", "edge_features", (219, 3), "edge_features: wrong shape"),
        ("dot", "v_src", (37, 2, 6), "v_src: wrong shape"),
        ("dot all", "edge_query", (29, 2, 4), "edge_query: wrong shape"),
        ("dot all by head", "edge_features", (220, 1, 3), "edge_features: wrong shape"),
    ],
)
def test_wrong_shapes_are_named(case: str, operand: str, shape, message: str) -> None:
    c = call(case)
    c.operands[operand] = torch.ones(shape)
    with pytest.raises(InvalidArgument, match=message):
        c.run()


def test_what_cannot_be_meant() -> None:
    c = call("dot all")
    t = dict(c.operands)
    features = t.pop("edge_features")
    with pytest.raises(InvalidArgument, match="edge_features: not given"):
        dot_attention(c.graph, **t)
    with pytest.raises(InvalidArgument, match="edge_features: not given"):
        dot_attention(c.graph, *(t[n] for n in FUNCTORS["dot"].dst + FUNCTORS["dot"].src),
                      edge_aggregate=True)  # fmt: skip
    del t["edge_query"]
    with pytest.raises(InvalidArgument, match="of no effect"):
        dot_attention(c.graph, **t, edge_features=features)
    wide = torch.ones(220, 1025)
    with pytest.raises(Unsupported) as refused:
        dot_attention(c.graph, **t, edge_features=wide, edge_aggregate=True)
    assert refused.value.reason == "edge-dim"
    gat = call("gat")
    for p in (-0.1, 1.5, float("nan"), None):
        with pytest.raises(InvalidArgument, match="dropout_p"):
            gat.run(dropout_p=p)
    with pytest.raises(InvalidArgument, match="scale"):
        dot_attention(c.graph, **t, scale=float("inf"))
    with pytest.raises(InvalidArgument, match=r"a gnn_backend\.graph\.Graph"):
        gat_attention(None, **gat.operands)
    mixed = call("gatv2 edge")
    mixed.operands["edge"] = mixed.operands["edge"].double()
    with pytest.raises(InvalidArgument, match="edge: mixed dtypes"):
        gatv2_attention(mixed.graph, **mixed.operands)

"""Every functor and edge operand on the device kernels, in the emulator, against the twins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from gnn_backend import config
from gnn_backend.errors import Unsupported
from gnn_backend.graph import Graph
from gnn_backend.profile import profile
from tests.ops.family import CASES, call
from tests.ops.family_checks import SHAPES, check, shaped
from tests.ops.support import edges_with_hubs, same_bits

pytestmark = pytest.mark.sampled(6)


@pytest.fixture(autouse=True)
def on_the_device(unoptimised: None, splitting: None) -> None:
    """Run the operators on the device engine in the emulator, with rows split."""


@pytest.mark.parametrize("case", CASES)
def test_dropout_weights_and_their_gradient(case: str) -> None:
    check(call(case, weights=True), 0.4)


@pytest.mark.parametrize(("case", "heads", "dim", "width", "dtype"), SHAPES)
def test_shapes(case: str, heads: int, dim: int, width: int, dtype: torch.dtype) -> None:
    check(shaped(case, heads, dim, width, dtype), factor=2.0)


@pytest.mark.parametrize("case", ["dot all", "gat features by head", "gatv2 edge"])
def test_equal_inputs_give_equal_bits(case: str) -> None:
    first, second = (check(call(case, weights=True), 0.3) for _ in range(2))
    assert same_bits(first, second)


@pytest.mark.parametrize("case", ["dot all", "gat logit"])
def test_lane_orders(case: str) -> None:
    """Nothing depends on an order of lanes that nothing enforces."""
    results = []
    for order in ("reversed", "random:1"):
        with config.override(emulator_lane_order=order):
            results.append(check(call(case, weights=True), 0.3))
    assert same_bits(*results)


@pytest.mark.parametrize("case", ["dot all", "gat logit", "gatv2 edge"])
def test_edge_numbers_of_64_bits(case: str) -> None:
    """As a graph of 2^31 edges has them."""
    c = call(case, weights=True)
    for csr in (c.graph.by_dst, c.graph.by_src):
        csr._edge_ids = csr.edge_ids.long()
    check(c, 0.3)


def test_edges_in_csr_order() -> None:
    c = call("dot all", weights=True)
    by_dst = c.graph.by_dst
    plain = Graph.from_csr(by_dst.indptr, by_dst.indices, c.graph.num_src)
    assert plain.by_dst.edge_ids is None
    check(dataclasses.replace(c, graph=plain), 0.3)


@pytest.mark.parametrize(("case", "term"), [("dot bias", "edge_bias"), ("gat logit", "edge_logit")])
def test_masked_edges(case: str, term: str) -> None:
    """-inf masks edges; a row of it alone is NaN; one masked by large numbers alone is uniform."""
    c = call(case, 2, 8, weights=True)
    edges, *_ = edges_with_hubs()
    in_edges = [torch.nonzero(edges[1] == i).flatten() for i in range(29)]
    with torch.no_grad():
        mask = c.operands[term]
        mask[in_edges[3][::2]] = -torch.inf
        mask[in_edges[7], 0] = -torch.inf
        mask[in_edges[10]] = torch.finfo(torch.float32).min
        mask[in_edges[11]] = -1e9
    out, weights = (result.detach() for result in c.run())
    want, wanted = (result.detach() for result in c.to(torch.float64).twin())
    assert out[7, 0].isnan().all() and weights[in_edges[7], 0].isnan().all()
    assert (weights[in_edges[3][::2]] == 0).all()
    values = c.operands["v_src" if case == "dot bias" else "x_src"].detach()
    for row in (10, 11):  # in float32 such a mask swallows the rest of a logit
        want[row] = values[edges[0, in_edges[row]]].mean(0)
        wanted[in_edges[row]] = 1 / len(in_edges[row])
    for got, expected in ((out, want), (weights, wanted)):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("case", ["dot bias", "gat logit"])
def test_gradients_of_a_row_masked_by_large_numbers(case: str) -> None:
    c = call(case, 2, 8)
    edges, *_ = edges_with_hubs()
    term = "edge_bias" if case == "dot bias" else "edge_logit"
    with torch.no_grad():
        c.operands[term][edges[1] == 10] = -1e9
        for name in ("q_dst", "el"):  # as a float32 sum would have it in float64 as well
            if name in c.operands:
                c.operands[name].zero_()
    check(c)


def test_gradients_around_masked_edges() -> None:
    c = call("dot bias", 2, 8)
    with torch.no_grad():
        c.operands["edge_bias"][::3] = -torch.inf
    edges, *_ = edges_with_hubs()
    whole = [i for i in range(29) if c.operands["edge_bias"][edges[1] == i].isneginf().all()]
    keep = torch.ones(29, dtype=torch.bool)
    keep[whole] = False  # rows without edges, or whose edges are masked all
    results = []
    for d in (c, c.to(torch.float64)):
        out = (d.run() if d is c else d.twin())[0]
        total = (out[keep] * torch.linspace(-1, 1, out[keep].numel()).view_as(out[keep])).sum()
        results.append(torch.autograd.grad(total, list(d.operands.values())))
    for name, got, want in zip(c.operands, *results, strict=True):
        valid = want.isfinite()
        assert got[valid].isfinite().all(), name
        torch.testing.assert_close(got[valid].double(), want[valid], rtol=1e-4, atol=1e-5)
    assert (results[0][list(c.operands).index("edge_bias")][::3][:5] == 0).all()


@pytest.mark.parametrize("case", ["dot all", "gat features by head", "gatv2 edge"])
def test_each_operand_alone(case: str) -> None:
    """The gradient of one operand is the same where no other is asked for."""
    everything = check(call(case, weights=True), 0.3)
    for name in call(case).operands:
        c = call(case, weights=True)
        for other in set(c.operands) - {name}:
            c.operands[other].requires_grad_(False)
        torch.manual_seed(3)
        results = c.run(dropout_p=0.3)
        generator = torch.Generator().manual_seed(5)
        cotangents = [torch.randn(r.shape, generator=generator, dtype=torch.float64).float()
                      for r in results]  # fmt: skip
        (grad,) = torch.autograd.grad(results, [c.operands[name]], cotangents)
        assert torch.equal(grad, everything[name]), name


@pytest.mark.parametrize("case", ["dot all", "gat features", "gat features by head"])
def test_results_that_nobody_uses(case: str) -> None:
    c = call(case, weights=True)
    wide = c.to(torch.float64)
    for place in range(3):
        got, want = (
            torch.autograd.grad(
                results[place].square().sum(),
                list(d.operands.values()),
                retain_graph=True,
                materialize_grads=True,
            )
            for d, results in ((c, c.run()), (wide, wide.twin()))
        )
        for name, g, w in zip(c.operands, got, want, strict=True):
            torch.testing.assert_close(g.double(), w, rtol=1e-4, atol=2e-5, msg=f"{name} {place}")


def test_everything_dropped() -> None:
    c = call("dot all", weights=True)
    got = c.differentiated(c.run(dropout_p=1.0))
    assert all((tensor == 0).all() for tensor in got.values())


#: Kernels of a backward pass by the operands that need a gradient.
LAUNCHES = {
    ("v_src",): ["backward_src", "row_stats"],
    ("edge_bias",): ["backward_dst"],
    ("q_dst", "k_src"): ["backward_dst", "backward_src"],
}


@pytest.mark.parametrize("needs", LAUNCHES, ids="+".join)
def test_no_pass_that_nobody_needs(needs: tuple[str, ...], split_at: Callable[[int], None]) -> None:
    split_at(1000)
    c = call("dot bias")
    for name in set(c.operands) - set(needs):
        c.operands[name].requires_grad_(False)
    out = c.run()[0]
    with profile() as record:
        torch.autograd.grad(out.sum(), [c.operands[name] for name in needs])
    found = {entry.split("_l_")[1]: n for (_, entry), n in record.launches.items()}
    assert found == dict.fromkeys(LAUNCHES[needs], 1)


@pytest.mark.parametrize("case", ["dot all", "gat features", "gatv2 edge"])
def test_no_edges_and_no_rows(case: str) -> None:
    for num_src, num_dst in ((3, 4), (3, 0), (0, 0)):
        edges = torch.zeros(2, 0, dtype=torch.int64), num_src, num_dst
        c = call(case, edges=edges, weights=True)
        got = c.differentiated(c.run(dropout_p=0.2))
        assert all((tensor == 0).all() for tensor in got.values())


def test_too_many_edge_features() -> None:
    c = call("dot sum", width=1025)
    with pytest.raises(Unsupported) as refused:
        c.run()
    assert refused.value.reason == "edge-dim"
